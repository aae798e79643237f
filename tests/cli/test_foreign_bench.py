"""Flags of other engines' benchmarks: each is an option of the verb of bench, or has a reply by its own name."""

import importlib
import json
import re
from pathlib import Path

import pytest

from jaxinfer.cli.bench import VERBS
from jaxinfer.cli.foreign import changes_nothing, refusal
from jaxinfer.cli.foreign_bench import AS_THERE_IS, GROUPS

LISTS: dict[str, str] = json.loads((Path(__file__).parent / "flags_of_benchmarks.json").read_text())
OWN = {
    verb: {
        name
        for param in importlib.import_module(f"jaxinfer.cli.bench_{verb}").command.params
        for name in (*param.opts, *param.secondary_opts)
    }
    for verb in VERBS
}
OF_LLAMA = {"latency", "throughput"}  # the verbs with an engine; the short flags are llama-bench's alone


@pytest.mark.parametrize("program", LISTS)
def test_every_flag_has_a_reply_of_each_verb_that_measures_a_model(program):
    flags = LISTS[program].split()
    assert len(flags) >= 10
    verbs = OF_LLAMA if program.startswith("llama-bench") else set(OWN) - {"kernels", "show"}
    told = {(verb, flag): refusal(flag, "", OWN[verb], f"bench {verb}") for verb in verbs for flag in flags}
    assert [at for at, said in told.items() if said is None and at[1] not in OWN[at[0]]] == []


@pytest.mark.parametrize(("flags", "says"), GROUPS)
def test_a_reply_names_only_options_that_the_verb_has(flags, says):
    assert set(says) <= {"", *VERBS}
    for verb, reason in says.items():
        named = set(re.findall(r"(?<![\w(])--[a-z-]+", reason)) if reason.startswith("use --") else set()
        assert all(named <= OWN[one] for one in ([verb] if verb else set(VERBS) - set(says))), (verb, reason)


def test_no_flag_is_in_two_groups():
    listed = [flag for flags, _ in GROUPS for flag in flags.split()]
    assert sorted(set(listed)) == sorted(listed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("serve --num-prompts 8", "--num-prompts: use --requests"),
        ("throughput --num-prompts 8", "--num-prompts: use --loads REQUESTS:IN:OUT"),
        ("serve --request-rate 3", "--request-rate: use --rate"),
        ("serve --request_rate=3", "--request_rate: use --rate"),
        ("latency --request-rate 3", "--request-rate: `jaxinfer bench serve` has it: use --rate"),
        ("latency --batch-size 4", "--batch-size: use --batch-sizes"),
        ("latency -p 512", "-p: use --prompt-lengths"),
        ("latency --tensor-parallel-size 2", "--tensor-parallel-size: not yet: jaxinfer runs on one GPU; drop it"),
        ("serve --dataset-name sharegpt", "--dataset-name: not yet: prompts are random token ids, of one length"),
        (
            "serve --num-promts 8",
            "unknown option of jaxinfer bench serve '--num-promts', did you mean '--num-prompts'?",
        ),
    ],
)
def test_a_pasted_flag_is_answered_as_the_verb_has_it(cli, words, said):
    outcome = cli("bench", *words.split())
    assert outcome.code == 2 and outcome.last_line.startswith(f"error: {said}")


def test_a_value_that_asks_for_what_there_is_is_taken_and_named(cli):
    outcome = cli("bench", "serve", "--backend", "vllm", "--ignore-eos", "--temperature", "0", "--url", "x")
    assert outcome.err.count(" changes nothing here\n") == 3
    assert outcome.last_line.startswith("error: --url must begin with http")
    for flag, values in AS_THERE_IS.items():
        said = str(refusal(flag, "", OWN["serve"], "bench serve"))
        assert all(changes_nothing(said, value, "bench serve") for value in values)
        assert not changes_nothing(said, "other", "bench serve")


@pytest.mark.parametrize("verb", ["serve", "plan", "warmup"])
def test_a_value_that_asks_for_what_bench_has_is_refused_by_other_verbs(cli, verb):
    outcome = cli(verb, "demo", "--temperature", "0")
    assert outcome.code == 2 and outcome.last_line.startswith("error: --temperature: ")


def test_dashes_and_underscores_are_one_flag(cli):
    outcome = cli("bench", "serve", "--dataset_name", "random", "--url", "x")
    assert outcome.err.startswith("--dataset_name random changes nothing here\n")
