"""/openapi.json against the server that it speaks of: its routes, its fields, and bodies made of its schemas."""

import functools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from jaxinfer.protocol.fields import TOLD
from jaxinfer.protocol.schemas import request_schemas
from jaxinfer.server.app import create_app
from jaxinfer.server.guard import OPEN
from jaxinfer.server.openapi import OPERATIONS, openapi_document
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import RESPONSES, ask, ask_app, error_of, post

DOCUMENT = openapi_document(20, 256, has_keys=True)
SCHEMAS = request_schemas(20, 256)
BODIES = {operation.path: operation.body for operation in OPERATIONS if operation.body}
LEAST: dict[str, dict[str, Any]] = {
    "OllamaChatRequest": {"messages": [{"role": "user", "content": "x"}]},
    "GenerateRequest": {"prompt": "x"},
    "OllamaEmbedRequest": {"input": "x"},
    "OldEmbedRequest": {"prompt": "x"},
    "ShowRequest": {"model": "tiny"},
    "ChatCompletionRequest": {"messages": [{"role": "user", "content": "x"}]},
    "CompletionRequest": {"prompt": "x"},
    "ResponseRequest": {"input": "x"},
    "MessageRequest": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
    "CountTokensRequest": {"messages": [{"role": "user", "content": "x"}]},
    "EmbeddingRequest": {"input": "x"},
    "ScoreRequest": {"text_1": "x", "text_2": "y"},
    "TokenizeRequest": {"prompt": "x"},
    "ApplyTemplateRequest": {"messages": [{"role": "user", "content": "x"}]},
    "DetokenizeRequest": {"tokens": [65]},
    "AbortRequest": {"request_id": "x"},
}
# one field alone may be at odds with what is left out, or with this model; the field that the refusal then names
NEEDS = {
    "think": "think",
    "stream_options": "stream_options",  # stream
    "top_logprobs": "top_logprobs",  # logprobs
    "best_of": "best_of",  # n
    "max_tokens": "max_tokens",  # the context's length
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_output_tokens",
    "previous_response_id": "previous_response_id",  # one that is stored
    "min_tokens": "min_tokens",  # max_tokens
    "truncate_prompt_tokens": "truncate_prompt_tokens",  # the same
    "add_special_tokens": "add_special_tokens",
    "continue_final_message": "continue_final_message",
    "chat_template_kwargs": "chat_template_kwargs",  # only some names
    "priority": "priority",
    "session_append": "session_append",  # session_id
    "dimensions": "dimensions",  # the model's hidden size
    "/score text_1": "text_1",  # as many as text_2
    "model": "model",
    "/api/show name": "name",  # a model that is served
    "tool_choice": "tool_choice",  # tools
    "tools": "tools",  # different names
    "reasoning_effort": "reasoning_effort",  # a model that thinks
    "reasoning": "reasoning.effort",
    "thinking": "thinking",
    **dict.fromkeys(("/v1/messages messages", "/v1/messages/count_tokens messages"), "messages"),  # calls' results
    **dict.fromkeys(("/v1/responses input", "/v1/responses/input_tokens input"), "input"),  # a message among its items
    "/v1/responses response_format": ("response_format", "text.format"),  # a schema
    "/v1/responses/input_tokens response_format": ("response_format", "text.format"),  # the same
    "response_format": ("response_format", "response_format.json_schema.schema"),  # a schema
    "structured_outputs": "structured_outputs",  # one of its kinds
    "json_schema": "json_schema",  # JSON
    "guided_json": "guided_json",
    "structural_tag": "structural_tag",  # structures that begin with triggers
    "/tokenize prompt": "prompt",  # null
    "/tokenize messages": ("messages", "prompt"),  # not both
}


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """JSON that a schema of ours allows; small, and ids of FakeLLM's vocabulary."""
    if "anyOf" in schema:
        return st.one_of(*map(values, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", 0), min(schema.get("maximum", 2**63), 2**63))
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum"))
            return st.floats(low, schema["maximum"], exclude_min="exclusiveMinimum" in schema, allow_nan=False)
        case "string":
            letters = st.characters(codec="utf-8", exclude_characters="\0")
            if "pattern" in schema:  # JSON Schema's $ is the end, Python's may have a line end behind it
                found = st.from_regex(schema["pattern"], alphabet=letters)
                return found.filter(lambda text: len(text) <= 20 and not text.endswith("\n"))
            text = st.text(letters, max_size=20)
            return text.filter(lambda value: len(value) >= schema.get("minLength", 0))
        case "array":
            least = schema.get("minItems", 0)
            return st.lists(values(schema["items"]), min_size=least, max_size=min(3, schema.get("maxItems", 3)))
        case "object":
            return objects(schema)
    return st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just({}))


def objects(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    if "propertyNames" in schema:
        return st.dictionaries(st.integers(0, 255).map(str), values(schema["additionalProperties"]), max_size=3)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    optional = {name: values(inner) for name, inner in properties.items() if name not in required}
    return st.fixed_dictionaries({name: values(properties[name]) for name in required}, optional=optional)


@functools.cache  # to make the strategies of a hundred fields takes longer than to draw from them
def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    return objects(SCHEMAS[BODIES[path]])


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=5,
)


def check_documented(path: str, body: Any) -> None:
    """The answer is one that the document names, and no 5xx."""
    sent = json.dumps(body)  # Hypothesis draws words of our modules too
    response = post(FakeLLM(), path, sent.encode())
    assert str(response.status_code) in DOCUMENT["paths"][path]["post"]["responses"]
    assert response.status_code < 500
    if response.status_code != 200:
        error_of(response, sent)


def test_every_route_is_in_the_document_and_nothing_else():
    app = create_app(FakeLLM())
    routes = {route.path.replace(":path", "") for route in app.routes if isinstance(route, Route)}
    assert set(DOCUMENT["paths"]) == routes
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            stored = ask_app(app, "POST", RESPONSES, json={"input": "x"}).json()["id"]
            named = path.replace("{id}", stored if path.startswith(RESPONSES) else "tiny").replace("{part}", "x")
            answer = ask_app(app, method.upper(), named, content=b"{}")
            if method == "head":  # has no body
                assert (answer.status_code, answer.content) == (404, b"")
                continue
            if "200" not in operation["responses"]:
                assert error_of(answer)["message"].startswith(operation["summary"].replace("Not here:", "there are no"))
                continue
            expected = {"/v1/sessions/{id}": (404,), "/v1/responses/{id}/cancel": (400,)}  # it has ended
            # below /api a body is read without a content type too, and lacks an input or a model
            expected |= dict.fromkeys(("/api/embed", "/api/embeddings", "/api/show"), (400,))
            assert answer.status_code in expected.get(path, (200, 415))
            assert ("security" in operation) == (path not in OPEN)


def test_every_reference_leads_somewhere():
    names = {part.partition('"')[0] for part in json.dumps(DOCUMENT).split('"$ref": "#/components/schemas/')[1:]}
    assert names == set(DOCUMENT["components"]["schemas"])


def test_it_is_served_and_knows_the_server_s_own_limits():
    served = ask(FakeLLM(max_logprobs=7), "GET", "/openapi.json").json()
    chat = served["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert chat["top_logprobs"]["anyOf"][0]["maximum"] == 7
    assert chat["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == 299
    assert ask(FakeLLM(status="starting"), "GET", "/openapi.json").json()["openapi"] == "3.1.0"
    locked = ServerSettings(api_keys=(ApiKey("a", "sk-0123456789"),))
    assert ask(FakeLLM(), "GET", "/openapi.json", locked).status_code == 401


@pytest.mark.parametrize(
    ("path", "field"), [(path, field) for path, name in BODIES.items() for field in SCHEMAS[name]["properties"]]
)
@settings(max_examples=3, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_value_that_the_schema_allows_is_taken(path, field, data):
    name = BODIES[path]
    value = data.draw(values(SCHEMAS[name]["properties"][field]))
    body = LEAST[name] | {field: value}
    response = post(FakeLLM(), path, body)
    needed = NEEDS.get(f"{path} {field}") or NEEDS.get(field, "no refusal")
    if response.status_code == 200:
        assert (field in response.headers.get("x-jaxinfer-warnings", "")) == (field in TOLD and value is not None)
    else:
        assert (error_of(response, json.dumps(body))["param"] or field).startswith(needed), response.text


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=30, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_of_the_schema_is_a_5xx(path, data):
    check_documented(path, data.draw(bodies(path)))


@pytest.mark.slow
@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_at_all_is_a_5xx(path, data):
    """Fields of the schema, some with anything in them."""
    body = data.draw(st.one_of(bodies(path), st.just(LEAST[BODIES[path]])))
    for field in data.draw(st.sets(st.sampled_from(sorted(SCHEMAS[BODIES[path]]["properties"])), max_size=3)):
        body = body | {field: data.draw(ANYTHING)}
    check_documented(path, body)
