"""What official clients call beside a resource that we serve is answered by its name, and one route has one path."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.server.absent import ABSENT
from jaxinfer.server.app import create_app
from jaxinfer.server.paths import plain
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, MESSAGES, RESPONSES, USER, ask, ask_app, error_of, live, post

VERBS = {"get": "GET", "get_api_list": "GET", "post": "POST", "put": "PUT", "patch": "PATCH", "delete": "DELETE"}
CALL = re.compile(rf"self\._({'|'.join(VERBS)})\(")
CALLED = re.compile(CALL.pattern + r'\s*(?:path_template\(\s*)?f?"([^"?]+)')
SERVED = ("/v1/chat/", "/v1/completions/", "/v1/embeddings/", "/v1/models/", "/v1/responses/", "/v1/files/")
SERVED += ("/v1/batches/", "/v1/messages/", "/v1/sessions/")
ANTHROPIC = Path(__file__).parents[2] / ".clients" / "anthropic" / "anthropic" / "resources"


def operations(resources: Path) -> tuple[set[tuple[str, str]], int]:
    """The methods and paths that a package's resources call, and how many calls have no path of their own."""
    found, num_calls, num_found = set(), 0, 0
    for path in resources.rglob("*.py"):
        source = path.read_text()
        num_calls += len(CALL.findall(source))
        for verb, called in CALLED.findall(source):
            num_found += 1
            found.add((VERBS[verb], "/v1" + called.removeprefix("/v1")))
    return found, num_calls - num_found


def beside(resources: Path) -> list[tuple[str, str]]:
    """Those of the resources that we serve."""
    return sorted(found for found in operations(resources)[0] if f"{found[1]}/".startswith(SERVED))


def openai_resources() -> Path:
    return Path(find_spec("openai").origin).parent / "resources"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = create_app(FakeLLM(), ServerSettings(files_folder=tmp_path_factory.mktemp("files") / "kept"))
    yield app
    app.state.storage.close()


def check_answered(app: Any, method: str, path: str) -> None:
    """Not a 405, and not the 404 of a path that means nothing: one that says what is not there."""
    response = ask_app(app, method, re.sub(r"\{[^}]+\}", "some-id", path), json={})
    assert response.status_code in (200, 400, 404, 415), f"{method} {path}: {response.text}"
    if response.status_code == 404:
        assert error_of(response)["message"].startswith(("there is no ", "there are no ", "the model "))
        assert not re.search("routes begin with|lists the routes", error_of(response)["message"]), f"{method} {path}"


def test_each_call_of_the_openai_package_beside_a_resource_of_ours_is_answered_by_its_name(app):
    _, num_unknown = operations(openai_resources())
    assert num_unknown == 0
    called = beside(openai_resources())
    assert {("GET", "/v1/responses/{response_id}/input_items"), ("DELETE", "/v1/models/{model}")} <= set(called)
    for method, path in called:
        check_answered(app, method, path)


@pytest.mark.parametrize(("method", "path"), [(method, absent.path) for absent in ABSENT for method in absent.methods])
def test_what_is_absent_is_named_with_what_to_do_instead(method, path):
    response = ask(FakeLLM(), method, re.sub(r"\{[^}]+\}", "a/b", path) if ":path" in path else path)
    (absent,) = [absent for absent in ABSENT if absent.path == path and method in absent.methods]
    assert response.status_code == 404
    if method == "HEAD":
        return  # its answer has no body
    assert absent.what in error_of(response)["message"] and absent.cure in error_of(response)["message"]


def test_the_openai_client_is_told_once():
    """A 404 is not tried again, as a 5xx would be."""
    with (
        live(create_app(FakeLLM())) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client,
    ):
        with pytest.raises(openai.NotFoundError, match="no stored chat completions here"):
            client.chat.completions.list()
        with pytest.raises(openai.NotFoundError, match="no models that can be deleted here"):
            client.models.delete("tiny")
        counted = client.responses.input_tokens.count(model="tiny", input="four")
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", len("user:four\nassistant:"))


def test_input_tokens_are_those_that_the_answer_counts():
    body = {"input": [{"role": "user", "content": "hi"}], "instructions": "be brief"}
    app = create_app(FakeLLM())
    answer = ask_app(app, "POST", RESPONSES, json=body).json()
    assert counted(app, body) == answer["usage"]["input_tokens"]
    following = {"input": "and then?", "previous_response_id": answer["id"]}
    assert counted(app, following) == ask_app(app, "POST", RESPONSES, json=following).json()["usage"]["input_tokens"]
    refused = ask_app(app, "POST", f"{RESPONSES}/input_tokens", json={"input": "x", "previous_response_id": "resp_x"})
    assert error_of(refused)["code"] == "previous_response_not_found"
    warned = ask_app(app, "POST", f"{RESPONSES}/input_tokens", json={"input": "x", "personality": "friendly"})
    assert "personality" in warned.headers["x-jaxinfer-warnings"]


def counted(app: Any, body: dict[str, Any]) -> int:
    response = ask_app(app, "POST", f"{RESPONSES}/input_tokens", json=body)
    assert response.status_code == 200, response.text
    return response.json()["input_tokens"]


PLAIN = {
    ("GET", "/v1/models"): ["//v1/models", "/v1/models/", "/v1//models//", "///v1///models"],
    ("GET", "/v1/models/tiny"): ["/v1/models/tiny/", "//v1/models//tiny"],
    ("GET", "/v1/models/org%2Ftiny-1B"): ["/v1/models/org/tiny-1B", "//v1/models/org//tiny-1B/"],
    ("GET", "/health"): ["//health", "/health/"],
    ("GET", "/"): ["//", "///"],
    ("POST", CHAT): [f"/{CHAT}", f"{CHAT}/", "/v1/chat//completions"],
    ("POST", MESSAGES): [f"/{MESSAGES}", f"{MESSAGES}/"],
}


@pytest.mark.parametrize(("route", "paths"), PLAIN.items(), ids=str)
def test_slashes_too_many_lead_to_the_same_route(route, paths):
    method, meant = route
    app, body = create_app(FakeLLM()), {"messages": USER, "max_tokens": 3} if method == "POST" else None
    headers = {"x-request-id": "the-same"}
    answers = [ask_app(app, method, f"http://test{path}", json=body, headers=headers) for path in [meant, *paths]]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert len({re.sub(r'"created":\d+', "", answer.text) for answer in answers}) == 1
    assert all(("request-id" in answer.headers) == (meant == MESSAGES) for answer in answers)


def test_a_model_named_by_its_folder_is_found_with_and_without_the_slash_that_it_begins_with():
    llm = FakeLLM(served_names=("/models/tiny",))
    for path in ("/v1/models/%2Fmodels%2Ftiny", "/v1/models//models/tiny", "/v1/models/models/tiny/"):
        assert ask(llm, "GET", f"http://test{path}").json()["id"] == "/models/tiny"
    assert error_of(ask(llm, "GET", "/v1/models/tiny"))["code"] == "model_not_found"


def test_slashes_open_no_door():
    locked = ServerSettings(api_keys=(ApiKey("a", "sk-0123456789"),))
    for path in ("//v1/models", "/v1/models/", "//metrics", "/metrics//", "//health//v1"):
        assert ask(FakeLLM(), "GET", f"http://test{path}", locked).status_code == 401
    for path in ("//health", "/livez/", "//"):
        assert ask(FakeLLM(), "GET", f"http://test{path}", locked).status_code == 200


def test_an_error_has_the_form_of_the_route_that_is_meant():
    assert error_of(post(FakeLLM(), f"{MESSAGES}/", {"messages": USER, "max_tokens": -1}))["type"]
    assert ask(FakeLLM(), "POST", f"http://test/{MESSAGES}", content=b"{}").json()["type"] == "error"


@given(st.text("/ab%", max_size=12))
def test_a_plain_path_stays_as_it_is(path):
    once = plain(f"/{path}")
    assert once == plain(once) and "//" not in once and once.startswith("/") and (once == "/" or once[-1] != "/")


@pytest.mark.slow  # `make clients` has the package
def test_so_is_each_of_the_anthropic_package(app):
    _, num_unknown = operations(ANTHROPIC)
    assert num_unknown <= 4, "the results of batches, whose URL a server says"
    called = beside(ANTHROPIC)
    assert {("POST", "/v1/messages/batches"), ("POST", "/v1/messages/count_tokens")} <= set(called)
    for method, path in called:
        check_answered(app, method, path)


@pytest.mark.parametrize(("path", "cure"), [("/v1/uploads", "GET /openapi.json"), ("/uploads", "begin with /v1")])
def test_a_route_that_is_not_there_is_told_where_routes_are(app, path, cure):
    assert cure in error_of(ask_app(app, "GET", path))["message"]


@pytest.mark.parametrize(("path", "cure"), [("/v1/no", "lists"), ("/api/no", "/api/chat"), ("/no", "with /v1 or /api")])
def test_a_path_of_nothing_is_told_where_routes_are(app, path, cure):
    response = ask_app(app, "GET", path)
    assert response.status_code == 404 and cure in response.text
