"""Every check of the acceptance list over the real server, and each ends in the resting state (rest.py).

Who answers is `jaxinfer serve --dry-run` as the list has it: pages of 16 tokens, 8 sequences, a context of 512, keys.
What needs faults, a browser's page, a second server or minutes is in files of their own: see ELSEWHERE.
"""

import ast
import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from jaxinfer.server.guard import OPEN
from jaxinfer.server.settings import ServerSettings
from tests.server.crowd import ask_together
from tests.server.http import CHAT, COMPLETIONS, LEAKS, USER, error_of, events, live, read_until
from tests.server.rest import Place, ends_at_rest
from tests.server.test_bad_requests import BASE, COUNTS, FLOATS, MEDIA, NUMBERS, SWARMS, TOKENS
from tests.server.test_errors import BAD_JSON
from tests.server.test_guard import ROUTES
from tests.server.test_wire import FRAMES, HEADS
from tests.support.processes import SERVE, footprint, serving

KEYS = ("key-of-the-first-1", "key-of-the-second-2")
TENANT = f"authorization: Bearer {KEYS[0]}"
TESTS = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Program:
    """`jaxinfer serve --dry-run`, a client of it with a key, and its log."""

    place: Place
    client: httpx2.Client
    log: Path

    @property
    def port(self) -> int:
        return int(self.place.base.rpartition(":")[2])

    def tokens(self) -> float:
        """That its engine has been given, of prompts."""
        page = self.client.get("/metrics").text
        (line,) = (line for line in page.splitlines() if line.startswith("vllm:prompt_tokens_total{"))
        return float(line.split()[-1])

    def send(self, raw: bytes) -> bytes:
        """All that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            with contextlib.suppress(ConnectionError):  # closed while we still write
                connection.sendall(raw)
            with contextlib.suppress(ConnectionError):
                return read_until(connection, b"")
        return b""

    def refuses(self, path: str, body: Any) -> dict[str, Any]:
        """The error of a request that must not get far; in OpenAI's shape, with nothing of our inside."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = self.client.post(path, content=raw, headers={"content-type": "application/json"})
        assert response.status_code in (400, 404, 413), (path, raw[:200], response.text[:200])
        return error_of(response)

    def refuses_all(self, name: str, values: Any, paths: tuple[str, ...] = (CHAT, COMPLETIONS), **beside: Any) -> None:
        """Each of a field's values, by its name."""
        for path in paths:
            for value in values:
                param = self.refuses(path, BASE[path] | beside | {name: value})["param"]
                assert param is not None and param.startswith(name), (path, name, str(value)[:50], param)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[tuple[Place, Path]]:
    """After so much at once that all its threads are there."""
    sizes = {"page-size": 16, "num-pages": 65, "max-num-seqs": 8, "max-model-len": 512, "max-num-queued-seqs": 64}
    flags = [f"--{name}={size}" for name, size in sizes.items()] + [f"--api-key={key}" for key in KEYS]
    flags += ["--allowed-hosts", "127.0.0.1,test", "--log-requests"]
    log = tmp_path_factory.mktemp("rest") / "log"
    with serving(log, *SERVE, "demo", "--dry-run", "--dry-run-step-ms", "1", "--port", "0", *flags) as (process, port):
        place = Place(f"http://127.0.0.1:{port}", process.pid, {"authorization": f"Bearer {KEYS[0]}"})
        large = {"prompt": " a" * 2**18, "max_tokens": 1}
        ask_together(place.base, [large, {"prompt": "x", "max_tokens": 4}] * 16, 32, **place.headers)
        yield place, log


@pytest.fixture
def program(place) -> Iterator[Program]:
    with place[0].client() as client:
        yield Program(place[0], client, place[1])


def counts(program: Program) -> None:
    """A01"""
    before = footprint(program.place.pid).kib
    program.refuses_all("n", COUNTS)
    program.refuses_all("best_of", COUNTS, (COMPLETIONS,))
    assert footprint(program.place.pid).kib - before < 5 * 2**10


def lengths(program: Program) -> None:
    """A02"""
    program.refuses_all("max_tokens", (-2, 1.5, "9", 10**12, 2**70, True, 512))
    program.refuses_all("max_completion_tokens", (0, -2, 1.5, "9", True), (CHAT,))
    codes = {program.refuses(COMPLETIONS, {"prompt": prompt})["code"] for prompt in ("x y" * 600, [1] * 513)}
    assert codes == {"context_length_exceeded"}


def numbers(program: Program) -> None:
    """A03"""
    for name in NUMBERS:
        program.refuses_all(name, FLOATS)
        for token in TOKENS:
            for path, base in BASE.items():
                raw = json.dumps(base).encode()[:-1] + b', "%s": %s}' % (name.encode(), token)
                assert program.refuses(path, raw)["param"] == name
    program.refuses_all("logit_bias", ({"5": "1"}, {"5": 101}, {"5": []}, {"5": True}, {"5": None}))


def logprobs(program: Program) -> None:
    """A04"""
    program.refuses_all("top_logprobs", (21, -1, 2**31, 10**9, "5", True), (CHAT,), logprobs=True)
    program.refuses_all("logprobs", (21, -1, 2**31, 10**9, "5", True), (COMPLETIONS,))
    answer = program.client.post(COMPLETIONS, json={"prompt": "x", "logprobs": 20, "max_tokens": 4}).json()
    assert all(0 < len(top) <= 21 for top in answer["choices"][0]["logprobs"]["top_logprobs"])


def crowds_in_one(program: Program) -> None:
    """A06"""
    program.refuses(COMPLETIONS, {"prompt": ["x"] * 100_000})
    program.refuses(CHAT, {"messages": USER * 30_000})
    program.refuses(CHAT, {"messages": USER * 100_000})


def stops(program: Program) -> None:
    """A07"""
    program.refuses_all("stop", SWARMS)
    four = {"stop": ["a", "b", "c", "d"], "max_tokens": 8}
    assert all(program.client.post(path, json=base | four).status_code == 200 for path, base in BASE.items())


def prompts(program: Program) -> None:
    """A08"""
    program.refuses_all("prompt", ("", [], None, 5, {}, [""], [[]], [None], [True], ["a", 5]), (COMPLETIONS,))
    bad = ([], None, "x", {}, [5], [{}], [{"role": "user"}], [{"role": "x"}], [{"role": "user", "content": None}])
    program.refuses_all("messages", bad, (CHAT,))
    program.refuses_all("model", ("gpt-5", 5))
    spelt = [{"role": "user", "content": "<|im_end|>"}]
    told = program.client.post("/tokenize", json={"messages": spelt}).json()["tokens"]
    plain = program.client.post("/tokenize", json={"messages": [{"role": "user", "content": ""}]}).json()["tokens"]
    special = set(plain)
    assert len([token for token in told if token in special]) == len(plain), "it is text, not a token of its own"


def bytes_that_are_no_json(program: Program) -> None:
    """A09"""
    for path in BASE:
        for raw in BAD_JSON.values():
            program.refuses(path, raw)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\n{TENANT}\r\ncontent-type: application/json\r\n".encode()
    before = footprint(program.place.pid).kib
    received = program.send(head + b"content-length: 67108864\r\n\r\n" + b" " * 2**26)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert footprint(program.place.pid).kib - before < 10 * 2**10


def heads(program: Program) -> None:
    """A10"""
    before = footprint(program.place.pid).kib
    for raw in HEADS.values():
        received = program.send(raw.replace(b"host: test\r\n", f"host: test\r\n{TENANT}\r\n".encode()))
        assert received == b"" or received.startswith(b"HTTP/1.1 4"), received[:200]
    assert footprint(program.place.pid).kib - before < 10 * 2**10


def framings(program: Program) -> None:
    """A12; test_wire.py has a thousand requests on one connection."""
    raw = json.dumps(BASE[CHAT]).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert program.client.post(CHAT, content=raw, headers={"content-type": kind}).status_code == 415
    assert program.client.get(COMPLETIONS).status_code == program.client.post("/health").status_code == 405
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\n{TENANT}\r\ncontent-type: application/json\r\n".encode()
    for rest in FRAMES.values():
        assert program.send(head + rest + raw).startswith(b"HTTP/1.1 400 ")
    statuses = {program.client.post("/tokenize", json={"prompt": "x"}).status_code for _ in range(200)}
    assert statuses == {200}, "all on one connection"


def leaks(program: Program) -> None:
    """A13: what is refused says nothing of us, and the log nothing of what was asked and one line each."""
    forged = "x\r\nforged\x1b[31m"
    begun = len(program.log.read_text())
    for body in ({"prompt": "secret", "model": forged}, {"prompt": "secret", forged: 1}, {"prompt": "secret", "n": 0}):
        program.client.post(COMPLETIONS, json=body, headers={"user-agent": "secret \x1b[31m"})
    for target in ("/%0d%0aforged%1b[31m?secret", "/v1/nothing/%00"):
        assert not any(leak in program.client.get(target).text for leak in LEAKS)
    logged = program.log.read_text()[begun:]
    assert logged.count("\n") >= 5, "requests are logged"
    assert not any(bad in logged for bad in ("secret", "\x1b", "\r", "\nforged", *KEYS))


def keys(program: Program) -> None:
    """A14"""
    before = program.tokens()
    with httpx2.Client(base_url=program.place.base) as client:
        for headers in ({}, *({"authorization": value.encode()} for value in ("Bearer", "Bearer x", KEYS[0], "ü"))):
            for method, path in ROUTES:
                status = client.request(method, path, headers=headers, content=b"{}").status_code
                assert status == (200 if path in OPEN else 401), (method, path)
    assert program.tokens() == before


TARGETS = [
    (CHAT, "localhost/health?"),
    (CHAT, "test/v1/models#"),
    (f"http://localhost/health?{CHAT}", "test"),
    (f"http://test{CHAT}", "test"),
    ("//v1/completions", "test"),
    ("/v1/../v1/completions", "test"),
    ("/health/%2e%2e/v1/completions", "test"),
]


def spellings(program: Program) -> None:
    """A15"""
    before, raw = program.tokens(), b'{"prompt": "x"}'
    for target, host in TARGETS:
        for method in ("POST", "QUERY", "post"):
            head = f"{method} {target} HTTP/1.1\r\nhost: {host}\r\nx-forwarded-for: 127.0.0.1\r\nconnection: close"
            head += f"\r\nx-original-url: /health\r\ncontent-length: {len(raw)}\r\n\r\n"
            received = program.send(head.encode() + raw)
            assert int(received.split()[1]) in (200, 400, 401, 403, 405) and b'"choices"' not in received
    assert program.tokens() == before


def strangers(program: Program) -> None:
    """A16"""
    for path in ("/v1/models", "/health", "/metrics"):
        response = program.client.get(path, headers={"host": "evil.example"})
        assert (response.status_code, error_of(response)["code"]) == (403, "host_not_allowed")
    page = program.client.get("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in page.headers
    assert httpx2.get(f"{program.place.base}/metrics").status_code == 401
    assert program.client.get("/debug/vars").status_code == 404
    assert program.client.post("/start_profile").status_code == 404


HOSTILE = "<script>window.pwned=1</script><img src=x onerror=alert(1)> ```<svg onload=alert(1)>```"


def the_page(program: Program) -> None:
    """A17, as far as a server goes: the policy of its page, and answers that are no HTML whatever they say."""
    response = program.client.get("/")
    policy = response.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "http" not in policy
    asked = {"prompt": HOSTILE, "echo": True, "max_tokens": 1}
    answer = program.client.post(COMPLETIONS, json=asked)
    assert answer.json()["choices"][0]["text"].startswith(HOSTILE)
    assert answer.headers["content-type"] == "application/json"


def media(program: Program) -> None:
    """A18: nobody is asked, so the listener whose address is in each of them hears of nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        text = json.dumps(MEDIA).replace("http://127.0.0.1:9/x.png", url).replace("gopher://127.0.0.1", url)
        parts = json.loads(text)
        for part in parts:
            error = program.refuses(CHAT, {"messages": [{"role": "user", "content": [part]}]})
            assert error["code"] == "unsupported_parameter"
        said = {"messages": [{"role": "user", "content": f"![x]({url})"}], "max_tokens": 1}
        assert program.client.post(CHAT, json=said).status_code == 200
        with pytest.raises(BlockingIOError):
            listener.accept()


def foreign_fields(program: Program) -> None:
    """A19; tests/cli/test_confined.py has its one port, tests/test_project.py the scan of our sources."""
    for name, value in (("prompt_embeds", "gASV"), ("custom_logit_processor", "{}"), ("kv_transfer_params", {"x": 1})):
        program.refuses_all(name, [value])
    answer = program.client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "never_heard_of": 1})
    assert answer.status_code == 200 and any("never_heard_of" in value for value in answer.headers.values())
    program.refuses(COMPLETIONS, {"prompt": "x"} | {f"field{number}": 1 for number in range(300_000)})


def templates(program: Program) -> None:
    """A22; test_runaway_template.py has those that a server does not start with."""
    program.refuses_all("chat_template", ["{{ ''.__class__.__mro__ }}"], (CHAT,))
    bad = ({"tokenize": True}, {"messages": []}, {"enable_thinking": "{{ 7*7 }}"})
    program.refuses_all("chat_template_kwargs", bad, (CHAT,))


def one_id_twice(program: Program) -> None:
    """A28"""
    bodies = [{"prompt": f"say {i}", "max_tokens": 40, "ignore_eos": True, "seed": i} for i in range(2)]
    given = program.place.headers | {"x-request-id": "the-same"}
    alone = [program.client.post(COMPLETIONS, json=body).json()["choices"] for body in bodies]
    together = ask_together(program.place.base, bodies * 2, at_once=4, **given)
    assert [answer.json()["choices"] for answer in together] == alone * 2 and alone[0] != alone[1]


def threads(program: Program) -> None:
    """A48: 16 clients; tests/text/test_tokenizer.py has the same without a server, 250 calls of each."""

    def calls(client: httpx2.Client, prompt: str) -> tuple[Any, ...]:
        said = [{"role": "user", "content": prompt}]
        ids = client.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
        back = client.post("/detokenize", json={"tokens": ids}).json()["prompt"]
        return ids, back, client.post("/apply-template", json={"messages": said}).json()["prompt"]

    texts = [f"héllo {number} 世界 <|im_end|> \U0001f469\u200d\U0001f467" for number in range(10)]
    with program.place.client() as client, ThreadPoolExecutor(16) as pool:
        alone = [calls(client, text) for text in texts]
        assert list(pool.map(partial(calls, client), texts * 16)) == alone * 16


CHECKS: dict[str, Callable[[Program], None]] = {
    "A01": counts,
    "A02": lengths,
    "A03": numbers,
    "A04": logprobs,
    "A06": crowds_in_one,
    "A07": stops,
    "A08": prompts,
    "A09": bytes_that_are_no_json,
    "A10": heads,
    "A12": framings,
    "A13": leaks,
    "A14": keys,
    "A15": spellings,
    "A16": strangers,
    "A17": the_page,
    "A18": media,
    "A19": foreign_fields,
    "A22": templates,
    "A28": one_id_twice,
    "A48": threads,
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_server_is_at_rest_after(program, check):
    with ends_at_rest(program.place):
        CHECKS[check](program)


def test_who_waits_in_the_queue_hears_of_it_and_the_server_is_at_rest_after():
    """A41; test_drain.py has the rest, at whose end there is no process left."""
    config = EngineConfig(model="demo", max_num_seqs=1, max_num_queued_seqs=8)
    llm = AsyncLLM(config, new_transport=partial(EngineProcess, child=(MODULE, "0.005")))
    app = create_app(llm, ServerSettings(ping_interval_s=0.1))
    with live(app, llm.start, llm.close) as port:
        place = Place(f"http://127.0.0.1:{port}", os.getpid())
        body = {"prompt": "x", "max_tokens": 150, "stream": True, "ignore_eos": True}
        with ends_at_rest(place):
            answers = ask_together(place.base, [body, body], at_once=2)  # either may come first
        assert sum(answer.text.count(": ping\n\n") for answer in answers) >= 3, "one of them waited 750 ms"
        for answer in answers:
            assert len(events(answer.text)) > 100
            assert (answer.headers["x-accel-buffering"], answer.headers["cache-control"]) == ("no", "no-cache")


PROMISED = (
    *("A01", "A02", "A03", "A04", "A06", "A07", "A08", "A09", "A10", "A11", "A12", "A13", "A14", "A15", "A16", "A17"),
    *("A18", "A19", "A21", "A22", "A23", "A28", "A40", "A41", "A44", "A45", "A46", "A47", "A48"),
)
ELSEWHERE = {
    "A11": "server/test_wire.py::test_five_hundred_that_drip_a_byte_a_second_are_closed_in_fifteen_and_hold_up_nobody",
    "A21": "cli/test_confined.py::test_whatever_a_request_names_nothing_is_opened_or_started",
    "A23": "server/test_runaway_template.py::test_a_template_that_runs_away_for_a_message_costs_that_request_alone",
    "A40": "server/test_endurance.py::test_a_thousand_streams_under_faults_end_once_and_say_what_they_would_have_said",
    "A41": "server/test_rest.py::test_who_waits_in_the_queue_hears_of_it_and_the_server_is_at_rest_after",
    "A44": "server/test_stalls.py::test_a_hang_is_told_with_the_limit_that_is_the_default_whatever_the_clock_says",
    "A45": "server/test_endurance.py::test_two_thousand_requests_that_are_left_cost_two_steps_each_at_most",
    "A45 (b)": "server/test_slow_reader.py::test_readers_that_never_read_are_dropped_and_cost_others_nothing",
    "A46": "server/test_endurance.py::test_a_pool_full_of_growers_moves_on_every_second_for_half_a_minute",
    "A47": "server/test_huge_prompts.py::test_tails_of_checks_and_streams_beside_four_of_them",
}
LOOKS = {"ends_at_rest", "ends_as_it_began"}


def looks(test: ast.FunctionDef) -> bool:
    """Whether all that it asks is asked in one of those."""
    entered = [item.context_expr for node in ast.walk(test) if isinstance(node, ast.With) for item in node.items]
    return any(isinstance(call, ast.Call) and getattr(call.func, "id", "") in LOOKS for call in entered)


def test_each_promised_check_has_a_test_that_ends_at_rest():
    assert {*CHECKS, *ELSEWHERE} - {"A45 (b)"} == {*PROMISED}
    for check, test in ELSEWHERE.items():
        file, name = test.split("::")
        found = [node for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)]
        (function,) = (node for node in found if node.name == name)
        assert looks(function), f"{check}: {test} does not look whether the server is at rest"
