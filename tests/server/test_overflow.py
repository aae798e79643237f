"""A number that is not finite as a double, at any place of any route's body: a 400 that names the path, and nothing is
computed.
"""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxinfer.server.app import create_app
from jaxinfer.server.openapi import OPERATIONS, STORAGE, openapi_document
from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, RESPONSES, ask_app, error_of
from tests.server.storage import Client, serving

MARK = "here it stands"
DOCUMENT = openapi_document(20, 300, has_keys=False, operations=OPERATIONS + STORAGE)
BODIES = {
    path: methods["post"]["requestBody"]["content"]["application/json"]["example"]
    for path, methods in DOCUMENT["paths"].items()
    if "application/json" in methods.get("post", {}).get("requestBody", {}).get("content", {})
}
MORE = {  # fields that hold objects of any depth
    "metadata": {"a": 0},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"enum": [1, 2]}}}}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}}},
    "logit_bias": {"7": 1.5},
    "session_id": "s",
    "unknown": [[{"deep": [0]}]],
}


def steps_of(tree, before=()):
    """Of every place in it."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for step, child in children:
        yield (*before, step)
        yield from steps_of(child, (*before, step))


def marked(tree, steps):
    """A copy with MARK at that place."""
    if not steps:
        return MARK
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[steps[0]] = marked(tree[steps[0]], steps[1:])
    return copy


def path_of(steps):
    names = [f"[{step}]" if isinstance(step, int) else "['7']" if step == "7" else f".{step}" for step in steps]
    return "".join(names).removeprefix(".")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = create_app(FakeLLM(), ServerSettings(files_folder=tmp_path_factory.mktemp("files") / "kept"))
    yield app
    app.state.storage.close()


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_it_is_refused_at_any_place_of_any_route_s_body(app, path, data):
    body = MORE | BODIES[path]
    steps = data.draw(st.sampled_from(list(steps_of(body))))
    number = data.draw(st.sampled_from(["2e310", "-3e320", "9" * 400]))
    content = json.dumps(marked(body, steps)).replace(json.dumps(MARK), number).encode()
    response = ask_app(app, "POST", path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    law = f"{path_of(steps)} must be a number that is finite as a double"
    assert error_of(response)["message"].startswith(law)
    assert error_of(response)["param"] in (path_of(steps), None)  # Anthropic's errors have no param
    assert not app.state.llm.calls


SCHEMA = b'{"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 2e310}}}'
EXAMPLES = {
    "const": (CHAT, b'{"messages": [], "response_format": %b}' % SCHEMA, "response_format.json_schema.schema.const"),
    "enum": (COMPLETIONS, b'{"prompt": "x", "guided_json": {"enum": [-3e320, 2]}}', "guided_json.enum[0]"),
    "a schema as text": (COMPLETIONS, b'{"prompt": "x", "guided_json": "{\\"const\\": 2e310}"}', "guided_json.const"),
    "NaN in a schema as text": (
        COMPLETIONS,
        b'{"prompt": "x", "guided_json": "{\\"const\\": NaN}"}',
        "guided_json.const",
    ),
    "metadata": (CHAT, b'{"messages": [], "metadata": {"a": 1e999}}', "metadata.a"),
    "metadata that would be repeated": (RESPONSES, b'{"input": "x", "metadata": {"a": 1e999}}', "metadata.a"),
}


@pytest.mark.parametrize("what", EXAMPLES)
def test_so_is_each_that_was_found(app, what):
    path, body, param = EXAMPLES[what]
    response = ask_app(app, "POST", path, content=body, headers={"content-type": "application/json"})
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, param, "invalid_json")
    law = (
        "must be JSON that can be read in one way" if b"NaN" in body else "must be a number that is finite as a double"
    )
    assert law in error["message"] and not error["message"].endswith("got another")


def test_a_row_of_a_batch_that_holds_one_is_a_fault_of_that_line(tmp_path):
    rows = [
        b'{"custom_id": "%d", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", '
        b'"content": "hi"}], "metadata": {"a": %b}}}' % pair
        for pair in ((1, b"1e308"), (2, b"1e309"))
    ]
    with serving(FakeLLM(), tmp_path / "kept") as url, Client(base_url=url) as client:
        batch = client.ended(client.begin(b"\n".join(rows)))
    assert batch["status"] == "failed"
    (fault,) = batch["errors"]["data"]
    assert (fault["line"], fault["param"]) == (2, "body.metadata.a")
