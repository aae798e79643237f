"""Schemas that we wrote, each with texts that it must let through and texts that it must not.

Without strict llguidance leaves out what it cannot enforce and says so: those families (`Case.refused`) let through
texts that are invalid for that reason alone, and nothing else that is.
"""

import json
import random
import re

import jsonschema_rs
import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher, warnings_of
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.grammar.trial import refuse, try_one
from tests.support.grammars import takes
from tests.support.schemas.corpus import (
    LEAST_INVALID,
    LEAST_VALID,
    accepted,
    corpus,
    least_valid,
    left_through,
    num_different,
    rejected,
)

CORPUS = corpus()
REFUSED = [case for case in CORPUS if case.refused]
COMPILED = [case for case in CORPUS if not case.refused]
TENTH = random.Random(7).sample(COMPILED, len(CORPUS) // 10)


def constraint(case, strict):
    return Constraint("json_schema", json.dumps(case.schema), strict, param="response_format")


def faults(case, strict, vocabulary, tokenizer):
    """What is wrong with a schema that must compile: it does not, it warns, it is too tight or too loose."""
    try:
        matcher = new_matcher(vocabulary, source_of(constraint(case, strict), {}))
    except InvalidRequest as refusal:
        return [f"{case.family}: {case.schema} is refused: {refusal}"]
    found = [f"{case.family}: {case.schema} {warning}" for warning in warnings_of(matcher)]
    texts = accepted(case)
    for text in texts:
        if not takes(matcher, tokenizer, text):
            found.append(f"{case.family}: {case.schema} must let through {text}")
    cut = [text[:-1] for text in texts if text[0] in "[{"] + [f"{text} x" for text in texts[:1]]
    for text in [*rejected(case), *cut]:
        if takes(matcher, tokenizer, text):
            found.append(f"{case.family}: {case.schema} must not let through {text}")
    return found


def test_there_are_a_thousand_schemas_and_two_hundred_of_clients():
    different = {json.dumps(case.schema) for case in CORPUS}
    of_clients = {json.dumps(case.schema) for case in CORPUS if case.client}
    assert len(different) >= 1000 and len(of_clients) >= 200
    assert len(COMPILED) >= 0.97 * len(CORPUS)


def test_of_each_there_are_three_different_values_and_two_that_are_none():
    """But where the schema has fewer, all of them; also of what is refused."""
    for case in CORPUS:
        assert num_different(case.valid) >= least_valid(case.schema), case
        assert num_different(case.invalid) >= LEAST_INVALID and len(rejected(case)) >= LEAST_INVALID, case
        assert len(accepted(case)) >= num_different(case.valid), case
    few = [case for case in CORPUS if least_valid(case.schema) < LEAST_VALID]
    assert len(few) <= 0.05 * len(CORPUS), "finite ones are the exception"


def test_a_validator_says_the_same_of_every_text():
    for case in CORPUS:
        validator = jsonschema_rs.validator_for(case.schema, validate_formats=True)
        for text in accepted(case):
            assert validator.is_valid(json.loads(text)), (case.schema, text)
        for text in [*rejected(case), *left_through(case)]:
            assert not validator.is_valid(json.loads(text)), (case.schema, text)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_a_tenth_is_neither_too_tight_nor_too_loose(vocabulary, tokenizer, strict):
    assert [fault for case in TENTH for fault in faults(case, strict, vocabulary, tokenizer)] == []


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_no_schema_is_too_tight_or_too_loose(vocabulary, tokenizer, strict):
    found = [fault for case in COMPILED for fault in faults(case, strict, vocabulary, tokenizer)]
    assert found == []
    of_clients = sum(case.client for case in CORPUS)
    print(
        f"{len(CORPUS)} schemas, {of_clients} as clients send them: {len(COMPILED)} compile, {len(REFUSED)} are refused"
    )


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.refused} {'$defs' in case.schema}")
def test_what_cannot_be_enforced_is_refused_by_name(vocabulary, tokenizer, case):
    strictly = constraint(case, True)
    with pytest.raises(InvalidRequest, match=re.escape(case.refused)) as refusal:
        refuse(try_one(vocabulary, strictly, {}), strictly)
    assert refusal.value.param == "response_format"
    tried = try_one(vocabulary, constraint(case, False), {})
    assert "set strict to false" in str(refusal.value)
    assert any(case.refused in warning for warning in tried.warnings)
    matcher = new_matcher(vocabulary, tried.text)
    for text in [*accepted(case), *left_through(case)]:
        assert takes(matcher, tokenizer, text), text
    for text in rejected(case):
        assert not takes(matcher, tokenizer, text), text
