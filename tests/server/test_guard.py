"""Who is let in: keys, host names, origins and quotas (A14, A15, A16), and what a client is told who is not."""

import dataclasses
import random
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from jaxinfer.server.absent import ABSENT
from jaxinfer.server.app import PROFILE_ROUTES, STORAGE_ROUTES, create_app
from jaxinfer.server.app import ROUTES as APP_ROUTES
from jaxinfer.server.guard import OPEN
from jaxinfer.server.quota import Quota
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey, Tenant, Tenants
from tests.server.fakes import FakeLLM
from tests.server.http import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    USER,
    ask,
    ask_app,
    error_of,
    live,
    post,
    raw_request,
    read_until,
)
from tests.support.attempts import assert_below

KEY, OTHER, SPARE = "sk-first-0123456789", "sk-other-0123456789", "sk-spare-0123456789"
KEYS = (ApiKey("first", KEY), ApiKey("other", OTHER), ApiKey("first", SPARE))
LOCKED = ServerSettings(api_keys=KEYS)
AT_HOME = ServerSettings(allowed_hosts=("localhost", "127.0.0.1", "[::1]"))


def paths(routes: list[Route]) -> set[tuple[str, str]]:
    """The method and a path of each."""
    named = ((route, route.path.replace("{id:path}", "tiny").replace("{id}", "tiny")) for route in routes)
    return {(method, path) for route, path in named for method in (route.methods or ())}


ROUTES = sorted(paths(APP_ROUTES))
MISSING = paths([absent.route for absent in ABSENT])
STORING, PROFILING = paths(STORAGE_ROUTES), paths(PROFILE_ROUTES)
NAMING = ("/v1/responses/", "/v1/sessions/", "/v1/files/", "/v1/batches/")  # what there is none of here


@pytest.fixture
def whole(tmp_path) -> Iterator[Starlette]:
    """An app with keys, and with all that brings routes of its own. One for many requests: the folder is its own."""
    app = create_app(FakeLLM(), dataclasses.replace(LOCKED, profile_folder=tmp_path, files_folder=tmp_path / "files"))
    yield app
    app.state.storage.close()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def locked() -> Iterator[tuple[FakeLLM, int]]:
    """A server that asks for a key, and its port."""
    llm = FakeLLM()
    with live(create_app(llm, LOCKED)) as port:
        yield llm, port


def test_the_routes_are_found():
    assert {("POST", CHAT), ("GET", "/metrics"), ("GET", "/health"), ("POST", "/tokenize")} <= set(ROUTES)
    assert {("POST", "/v1/files"), ("GET", "/v1/files/tiny/content"), ("POST", "/v1/batches/tiny/cancel")} <= STORING
    assert {path for _, path in ROUTES} >= OPEN


def test_an_app_with_all_that_may_be_switched_on_has_no_other_routes(whole):
    assert all(isinstance(route, Route) for route in whole.routes), "none that is asked for otherwise"
    assert paths(whole.routes) == {*ROUTES, *STORING, *PROFILING}


@pytest.mark.parametrize(
    "given",
    [
        [],
        [("authorization", "Bearer wrong-key-0123456789")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer")],
        [("authorization", "")],
        [("authorization", KEY)],
        [("authorization", f"Basic {KEY}")],
        [("authorization", f"Bearer {KEY[:-1]}")],
        [("authorization", f"Bearer {KEY}x")],
        [("authorization", f"Bearer {KEY}\u00fc".encode())],
        [("authorization", f"Bearer {KEY.upper()}")],
        [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer x")],
        [("x-api-key", f"{KEY}x")],
        [("x-api-key", "")],
        [("x-api-key", KEY), ("x-api-key", OTHER)],
        [("x-api-key", KEY), ("authorization", f"Bearer {OTHER}")],
        [("x-api-key", KEY), ("authorization", f"Basic {KEY}")],
        [("api-key", KEY), ("cookie", f"authorization=Bearer {KEY}")],
    ],
)
def test_every_route_but_the_open_ones_asks_for_a_key(given, whole, tmp_path):
    """A14"""
    llm, before = whole.state.llm, sorted(tmp_path.rglob("*"))
    for method, path in (*ROUTES, *sorted(STORING | PROFILING)):
        response = ask_app(whole, method, path, headers=given, content=b"{}")
        if path in OPEN:
            assert response.status_code == 200
            continue
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), path
        if method != "HEAD":
            error = error_of(response)
            code = None if path.startswith(MESSAGES) else "invalid_api_key"
            if path.startswith("/api/"):  # Ollama's error is a text alone
                assert "API key" in error["message"]
                continue
            assert (error["type"], error["code"]) == ("authentication_error", code)
            assert KEY not in response.text
    assert not llm.calls and not llm.encoded and not llm.rendered
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {OTHER}"},
        {"authorization": f"BEARER {SPARE} "},
        {"x-api-key": KEY},
        {"x-api-key": OTHER, "authorization": f"Bearer {OTHER}"},
    ],
)
def test_each_key_opens_every_route(headers, whole):
    for method, path in (*ROUTES, *sorted(STORING)):
        response = ask_app(whole, method, path, headers=headers, content=b"{}")
        is_named = path.startswith(NAMING) and not path.endswith("/input_tokens")
        is_here = not is_named and (method, path) not in MISSING
        # without a content type: below /api the body is read all the same, and lacks what the route needs
        assert response.status_code in ((200, 400 if path.startswith("/api/") else 415) if is_here else (404,)), path


def test_unknown_paths_and_methods_tell_strangers_nothing():
    for method, path in [
        ("GET", "/nowhere"),
        ("GET", "/index.html"),
        ("PUT", CHAT),
        ("OPTIONS", CHAT),
        ("GET", "/debug/pprof"),
    ]:
        assert ask(FakeLLM(), method, path, LOCKED).status_code == 401
        assert ask(FakeLLM(), method, path, LOCKED, headers=bearer(KEY)).status_code in (404, 405)


def test_without_keys_nobody_is_asked():
    llm = FakeLLM()
    assert post(llm, CHAT, {"messages": USER}).status_code == 200
    assert post(llm, CHAT, {"messages": USER}, authorization="Bearer none").status_code == 200
    assert {call.salt for call in llm.calls} == {""}


def test_keys_are_shown_by_nothing():
    assert KEY not in repr(LOCKED)
    assert "salt=" not in repr(Tenants(KEYS).of(KEY.encode()))


def test_a_key_s_time_does_not_tell_how_much_of_it_is_right():
    """2,000 samples each for a key wrong at its first and at its last byte; their medians must not differ (A14)."""
    secret = "k" * 32
    tenants = Tenants([ApiKey("a", secret)])
    guesses = {"none": b"x" + secret[1:].encode(), "most": secret[:-1].encode() + b"x"}

    def difference() -> float:
        taken: dict[str, list[int]] = {name: [] for name in guesses}
        for _ in range(2000):
            for name in random.sample(list(guesses), 2):
                begun = time.perf_counter_ns()
                found = tenants.of(guesses[name])
                taken[name].append(time.perf_counter_ns() - begun)
                assert found is None
        medians = {name: statistics.median(times) for name, times in taken.items()}
        spread = statistics.median(abs(t - medians["none"]) for t in taken["none"])
        return abs(medians["none"] - medians["most"]) / max(spread, 40)

    assert_below(3, difference, "the medians' difference, in median deviations")


def test_each_tenant_has_its_own_salt_whatever_its_key():
    llm = FakeLLM()
    for key in (KEY, OTHER, SPARE, KEY):
        assert post(llm, COMPLETIONS, {"prompt": "x"}, LOCKED, **bearer(key)).status_code == 200
    salts = [call.salt for call in llm.calls]
    assert len(set(salts)) == 4, "each app draws its own"
    tenants = Tenants(KEYS)
    first, other, spare = (tenants.of(key.encode()) for key in (KEY, OTHER, SPARE))
    assert first == spare != other
    assert len(first.salt) == 32 and first.salt != other.salt


def test_a_client_s_salt_divides_its_tenant_s_and_names_no_other():
    llm = FakeLLM()
    with live(create_app(llm, LOCKED)) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def salt_of(key: str, **fields: str) -> str:
            asked = {"prompt": "x", **fields}
            assert client.post(COMPLETIONS, json=asked, headers=bearer(key)).status_code == 200
            return llm.calls[-1].salt

        first, other = salt_of(KEY), salt_of(OTHER)
        assert (salt_of(KEY, cache_salt="s"), salt_of(OTHER, cache_salt="s")) == (f"{first}/s", f"{other}/s")
        assert salt_of(KEY, cache_salt=other) == f"{first}/{other}"
        forged = client.post(COMPLETIONS, json={"prompt": "x", "cache_salt": f"{other}/s"}, headers=bearer(KEY))
    assert (forged.status_code, error_of(forged)["param"]) == (400, "cache_salt")


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (CHAT, "localhost/health?"),
        (CHAT, "x/v1/models#"),
        (CHAT, "localhost:8000@evil"),
        (CHAT, ""),
        (f"http://localhost/health?{CHAT}", "localhost"),
        (f"http://localhost{CHAT}", "localhost"),
        (f"http://health{CHAT}", "localhost/health"),
        ("//v1/chat/completions", "localhost"),
        ("/v1/../v1/chat/completions", "localhost"),
        ("/health/../v1/chat/completions", "localhost"),
        ("/health%2f..%2fv1/chat/completions", "localhost"),
        ("/%2e%2e/v1/chat/completions", "localhost"),
        ("/v1/chat/completions?x=/health", "localhost"),
        ("/v1/chat/completions#/health", "localhost"),
        ("/v1/chat/completions/", "localhost"),
        ("/v1%2fchat%2fcompletions", "localhost"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "QUERY"])
def test_no_spelling_of_a_path_leads_past_the_key(locked, method, target, host):
    llm, port = locked
    forged = {"x_forwarded_host": "localhost", "x_forwarded_for": "127.0.0.1", "x_original_url": "/health"}
    body = {"messages": USER}
    with raw_request(port, target, body, method=method, host=host, connection="close", **forged) as connection:
        received = read_until(connection, b"")
    status = int(received.split()[1])
    assert status in ((200, 400, 401, 405) if target.startswith("http://localhost/health?") else (400, 401))
    assert not llm.calls


@pytest.fixture(scope="module")
def at_home() -> Iterator[int]:
    """The port of a server that answers to its own names."""
    with live(create_app(FakeLLM(), settings=AT_HOME)) as port:
        yield port


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1:8000", "[::1]", "[::1]:80", "localhost:1"])
def test_on_loopback_its_own_names_are_answered_to(host):
    assert ask(FakeLLM(), "GET", "/v1/models", AT_HOME, headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "10.0.0.1"])
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics"])
def test_a_name_that_was_bent_to_this_machine_is_a_403(path, host):
    response = ask(FakeLLM(), "GET", path, AT_HOME, headers={"host": host})
    assert response.status_code == 403
    error = error_of(response)
    assert error["code"] == "host_not_allowed" and "--allowed-hosts" in error["message"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),  # no browser's: it sends a host
        (b"GET /v1/models HTTP/1.0\r\nhost: evil.example\r\n\r\n", 403),
        (b"GET /v1/models HTTP/1.0\r\nhost:\r\n\r\n", 403),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_only_a_request_of_http_1_0_may_leave_the_host_out(at_home, head, status):
    with socket.create_connection(("127.0.0.1", at_home)) as connection:
        connection.sendall(head)
        assert int(connection.recv(100).split()[1]) == status


@pytest.mark.parametrize(
    "hosts", [[("host", "localhost"), ("host", "evil")], [("host", "a b")], [("host", "é".encode())]]
)
def test_a_host_that_is_none_is_a_400(hosts):
    for door in (None, AT_HOME):
        response = ask(FakeLLM(), "GET", "/v1/models", door, headers=hosts)
        assert (response.status_code, error_of(response)["code"]) == (400, "invalid_host")


def test_no_other_site_s_page_may_read_an_answer_unless_it_is_named():
    page = {"origin": "https://app.example"}
    assert "access-control-allow-origin" not in ask(FakeLLM(), "GET", "/v1/models", headers=page).headers
    named = ServerSettings(allowed_origins=("https://app.example",), api_keys=KEYS)
    for headers, status in ((page, 401), (page | bearer(KEY), 200)):
        response = ask(FakeLLM(), "GET", "/v1/models", named, headers=headers)
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert response.headers["vary"] == "origin"
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in response.headers
    other = {"origin": "https://app.example.evil"} | bearer(KEY)
    assert "access-control-allow-origin" not in ask(FakeLLM(), "GET", "/v1/models", named, headers=other).headers
    everyone = ServerSettings(allowed_origins=("*",))
    assert ask(FakeLLM(), "GET", "/v1/models", everyone, headers=page).headers["access-control-allow-origin"] == "*"


def preflight(settings: ServerSettings, origin: str, **headers: Any) -> httpx2.Response:
    given = {"origin": origin, "access-control-request-method": "POST", **headers}
    return ask(FakeLLM(), "OPTIONS", CHAT, settings, headers=given)


def test_a_browser_that_asks_first_needs_no_key_and_gets_no_further():
    named = ServerSettings(allowed_origins=("https://app.example",), api_keys=KEYS)
    wanted = "authorization,content-type, x-stainless-os"
    response = preflight(named, "https://app.example", **{"access-control-request-headers": wanted})
    assert response.status_code == 204
    assert response.headers["access-control-allow-headers"] == wanted
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    refused = preflight(named, "https://evil.example")
    assert (refused.status_code, error_of(refused)["code"]) == (403, "origin_not_allowed")
    strange = preflight(named, "https://app.example", **{"access-control-request-headers": "a\tb"})
    assert "access-control-allow-headers" not in strange.headers


def test_a_tenant_s_requests_at_once_are_bounded():
    llm = FakeLLM(lambda ids, params: [60.0])
    settings = ServerSettings(api_keys=KEYS, max_requests_per_key=2)
    body = {"messages": USER, "stream": True}
    with live(create_app(llm, settings)) as port:
        url = f"http://127.0.0.1:{port}"
        running = [raw_request(port, CHAT, body, **bearer(KEY)) for _ in range(2)]
        deadline = time.monotonic() + 5
        while len(llm.calls) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        third = httpx2.post(f"{url}{CHAT}", json=body, headers=bearer(SPARE))
        assert (third.status_code, third.headers["retry-after"]) == (429, "1")
        assert error_of(third)["code"] == "concurrency_limit_exceeded"
        assert httpx2.get(f"{url}/v1/models", headers=bearer(KEY)).status_code == 200
        other = httpx2.post(f"{url}/tokenize", json={"prompt": "x"}, headers=bearer(OTHER))
        assert other.status_code == 200
        for connection in running:
            connection.close()
        while httpx2.post(f"{url}/tokenize", json={"prompt": "x"}, headers=bearer(KEY)).status_code == 429:
            assert time.monotonic() < deadline, "a request that has ended counts no longer"
            time.sleep(0.01)


def test_a_tenant_s_requests_a_minute_are_bounded():
    settings = ServerSettings(api_keys=KEYS, max_requests_per_minute_per_key=2)
    with live(create_app(FakeLLM(), settings)) as port:
        url = f"http://127.0.0.1:{port}/tokenize"
        answers = [httpx2.post(url, json={"prompt": "x"}, headers=bearer(key)) for key in (KEY, SPARE, KEY, OTHER)]
        stranger = [httpx2.post(url, json={"prompt": "x"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 200]
    assert error_of(answers[2])["code"] == "rate_limit_exceeded"
    assert 28 <= int(answers[2].headers["retry-after"]) <= 30
    assert [answer.status_code for answer in stranger] == [401] * 3


def test_a_minute_s_requests_may_come_at_once_and_then_one_by_one():
    now_s = [0.0]
    quota, tenant = Quota(None, 6, lambda: now_s[0]), Tenant("t", "s")
    taken = []
    for second in range(0, 130):
        now_s[0] = float(second)
        while True:
            try:
                quota.take(tenant)
            except Exception as error:
                assert 0 < error.retry_after_s <= 10
                break
            taken.append(second)
    assert taken == [0] * 6 + list(range(10, 130, 10))


SPACES = st.text(" \t", max_size=3)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SPACES, SPACES, SPACES.filter(bool), st.booleans())
def test_white_space_around_a_key_is_no_part_of_it(locked, before, behind, between, is_bearer):
    """As on the wire: what is around a header's value is none of it, and any of it may follow the scheme."""
    _, port = locked
    name, scheme = (b"Authorization", f"Bearer{between}") if is_bearer else (b"X-Api-Key", "")
    for key, status in ((KEY, b"200"), (f"{KEY[:8]}{between}{KEY[8:]}", b"401"), (f"{KEY}{between}x", b"401")):
        head = b"GET /v1/models HTTP/1.0\r\n%b:%b\r\n\r\n" % (name, f"{before}{scheme}{key}{behind}".encode())
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(head)
            assert read_until(connection, b"").split(b" ")[1] == status


@pytest.mark.parametrize("space", [b"\xa0", b"\x0b", b"\x0c", b"\x85", "\u2003".encode()])
def test_other_white_space_is_no_way_to_write_one(locked, space):
    _, port = locked
    for value in (b"Bearer %b%b" % (space, KEY.encode()), b"Bearer %b%b" % (KEY.encode(), space)):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"GET /v1/models HTTP/1.0\r\nAuthorization: %b\r\n\r\n" % value)
            assert read_until(connection, b"").split(b" ")[1] in (b"400", b"401")


@pytest.mark.parametrize("count", [2, 3])
def test_several_host_headers_are_told_as_several(count):
    headers = [("host", "localhost")] * count
    response = ask_app(create_app(FakeLLM()), "GET", "/version", headers=headers)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "invalid_host")
    assert error["message"] == f"the host header must be sent once, got {count} of them; send the server's alone"
