"""What an answer cannot be held to, over HTTP: refused under the client's own name for it, or left out with a warning;
and tools' schemas likewise, each of its own tool. Over an engine process of a dry run, which compiles as any.
"""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from jaxinfer.server.app import create_app
from tests.server.dry import dry_llm
from tests.server.http import CHAT, COMPLETIONS, RESPONSES, USER, error_of, live

FREE = {"type": "object", "properties": {"x": {"not": {"const": 1}}}}  # what no grammar of ours can say
WRONG = {"type": "string", "pattern": "("}
NESTED = {"type": "json_schema", "json_schema": {"name": "n", "schema": FREE, "strict": True}}
FLAT = {"type": "json_schema", "name": "n", "schema": FREE, "strict": True}
WARNINGS = "x-jaxinfer-warnings"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    llm = dry_llm(0.001, max_model_len=2048)
    with (
        live(create_app(llm), llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


def ask(client: httpx2.Client, path: str, **fields: Any) -> httpx2.Response:
    least = {CHAT: {"messages": USER, "max_tokens": 2}, COMPLETIONS: {"prompt": "x", "max_tokens": 2}}
    return client.post(path, json=least.get(path, {"input": "x", "max_output_tokens": 16}) | fields)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"response_format": NESTED}, "response_format"),
        (CHAT, {"response_format": FLAT}, "response_format"),
        (COMPLETIONS, {"response_format": NESTED}, "response_format"),
        (RESPONSES, {"text": {"format": FLAT}}, "text.format"),
        (CHAT, {"guided_json": FREE, "strict_schema": True}, "guided_json"),
        (CHAT, {"json_schema": FREE, "strict_schema": True}, "json_schema"),
        (COMPLETIONS, {"structured_outputs": {"json": FREE}, "strict_schema": True}, "structured_outputs"),
    ],
)
def test_a_keyword_that_strict_cannot_keep_is_refused_by_field_and_keyword(client, path, fields, param):
    response = ask(client, path, **fields)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, "invalid_grammar")
    assert error["message"].startswith(f"{param} must be something that an answer can be held to: ")
    assert '"not"' in error["message"] and error["message"].endswith("set strict to false")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": FREE}}}),
        (COMPLETIONS, {"guided_json": FREE}),
        (RESPONSES, {"text": {"format": FLAT | {"strict": False}}}),
    ],
)
def test_without_strict_it_is_left_out_and_named_in_the_warnings_header(client, path, fields, stream):
    response = ask(client, path, **fields, stream=stream)
    assert response.status_code == 200, response.text
    assert '"not"' in response.headers[WARNINGS]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"ebnf": "root ::= ("}, "ebnf"),
        ({"guided_grammar": "start: ("}, "guided_grammar"),
        ({"structured_outputs": {"regex": "(?=x)"}}, "structured_outputs"),
        ({"regex": "("}, "regex"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": WRONG}}}, "response_format"),
        ({"guided_json": WRONG}, "guided_json"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_the_client_s_own_name(client, fields, param):
    error = error_of(ask(client, CHAT, **fields))
    assert (error["param"], error["message"].partition(" ")[0]) == (param, param)


def tool(name: str, schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


GOOD, BAD = tool("good", {"type": "object"}), tool("bad", {"type": "object", "properties": {"x": WRONG}})
ODD = tool("odd", FREE, strict=True)
BESIDE = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    "fields", [{}, BESIDE, {"tools": [GOOD | {"function": GOOD["function"] | {"strict": True}}, BAD]}]
)
def test_a_tool_that_cannot_be_compiled_is_left_free_with_a_warning(client, fields):
    response = ask(client, CHAT, **{"tools": [GOOD, BAD]} | fields)
    assert response.status_code == 200, response.text
    assert response.headers[WARNINGS].startswith('arguments of "bad" are not held to their schema: ')


@pytest.mark.parametrize(
    ("fields", "name", "why"),
    [
        ({"tools": [GOOD, BAD], "tool_choice": "required"}, "bad", "unclosed group"),
        ({"tools": [GOOD, ODD]}, "odd", '"not"'),
        ({"tools": [GOOD, ODD]} | BESIDE, "odd", '"not"'),
        ({"tools": [tool("f", {"properties": {"a": {"type": 5}}})], "tool_choice": "required"}, "f", "type"),
    ],
)
def test_where_a_tool_must_be_held_to_it_is_refused_by_name(client, fields, name, why):
    response = ask(client, CHAT, **fields)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == ("tools", "invalid_grammar")
    assert f'arguments of "{name}": ' in error["message"] and why in error["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "good"}}])
@pytest.mark.parametrize("form", ["structured_outputs", "guided_regex", "response_format"])
def test_a_call_that_is_due_must_come_without_another_form(client, choice, form):
    forms = {"structured_outputs": {"regex": "a"}, "guided_regex": "a", **BESIDE}
    response = ask(client, CHAT, tools=[GOOD], tool_choice=choice, **{form: forms[form]})
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == ("tool_choice", "invalid_value")
    assert f"must come without {form};" in error["message"]
