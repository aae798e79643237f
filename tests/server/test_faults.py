"""What happens to a request, or to the engine, as others' clients see it: HTTP, and the real engine in its own process.

The checks are those of the acceptance list: A05, A27, A31, A35, A42, A43, and kill -9.
"""

import dataclasses
import itertools
import math
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.events import ignore
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from jaxinfer.testing.faults import Fault
from tests.server.http import CHAT, COMPLETIONS, EMBEDDINGS, USER, error_of, live, wait_until
from tests.server.streams import Answer, ask_all, ask_alone, strict_json
from tests.support.attempts import Stopwatch
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import small_config
from tests.support.faulty_child import Order, Orders, faultless

VOCAB = 384  # of the tiny checkpoint; the ids from 327 on belong to no token
NEVER_SAID = 383  # by `crowd`, so that faults can be meant for a prompt that holds it


@pytest.fixture(scope="module")
def config(tmp_path_factory, executables):
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
    return dataclasses.replace(small_config(folder, executables), tool_call_parser="hermes")


@pytest.fixture(scope="module")
def child() -> Iterator[tuple[str, ...]]:
    with faultless("real") as child:
        yield child


@pytest.fixture(scope="module")
def llm(config, child) -> AsyncLLM:
    return AsyncLLM(config, new_transport=partial(EngineProcess, child=child))


@pytest.fixture(scope="module")
def port(llm: AsyncLLM) -> Iterator[int]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


@pytest.fixture
def order(port: int, child: tuple[str, ...]) -> Iterator[Callable[..., None]]:
    """Give the engine process an Order by its fields; its faults are forgotten afterwards."""
    orders = Orders(child[-1])

    def send(**fields: Any) -> None:
        orders.send(Order(**fields))

    yield send
    send(clear=True, poison=False)
    orders.close()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(port: int) -> Iterator[None]:
    yield
    wait_until(lambda: metric(port, "kv_pages", state="owned") == metric(port, "requests", state="running") == 0)
    pages = [metric(port, "kv_pages", state=state) for state in ("free", "cached", "owned")]
    assert sum(pages) == metric(port, "kv_pages_total") == 64
    assert metric(port, "compilations_after_ready_total") == 0


def metric(port: int, name: str, **labels: str) -> float:
    """One value of /metrics."""
    page = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    (line,) = [
        line
        for line in page.splitlines()
        if line.startswith(f"jaxinfer:{name}{{") and all(label in line for label in wanted)
    ]
    return float(line.rpartition(" ")[2])


def grown(port: int, before: dict[str, float], name: str) -> float:
    """By how much a counter has grown; the engine tells of it within a moment."""
    return metric(port, name) - before[name]


def counters(port: int) -> dict[str, float]:
    names = ("engine_recoveries_total", "engine_restarts_total", "nonfinite_rows_total", "preemptions_total")
    return {name: metric(port, name) for name in names}


AGE = {"type": "object", "properties": {"age": {"type": "integer"}, "is": {"enum": ["x", None]}}, "required": ["age"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": AGE}}]
CALLING = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
OPENING = "323"  # <tool_call>
FORMS: dict[int, dict[str, Any]] = {
    2: {"structured_outputs": {"json": AGE}, "close_within_max_tokens": True, "ignore_eos": False},
    4: CALLING | {"logit_bias": {OPENING: 8, str(NEVER_SAID): -100}},
    5: {"structured_outputs": {"regex": "[a-z ]+(yes|no)[a-z]*"}},
    6: CALLING | {"tool_choice": "required", "ignore_eos": False},
    7: {"structured_outputs": {"grammar": 'start: ("red " | "blue" /[0-9]+/)+'}},
}


def crowd(count: int = 8, max_tokens: int = 60) -> list[dict[str, Any]]:
    """Different requests of every kind, with and without a form; none of them ever says NEVER_SAID."""
    bodies = []
    for i in range(count):
        prompt = [(i * 29 + k * 7) % 320 for k in range(6 + 5 * i)]
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": i % 2, "seed": i, "n": 1 + (i == 5)}
        body["logit_bias"] = {str(NEVER_SAID): -100}
        if i % 3 == 1:
            body |= {"logprobs": 0, "frequency_penalty": 0.5, "presence_penalty": 0.3}
        body |= FORMS.get(i % 8, {})
        if "messages" in body:
            del body["prompt"]
            body.pop("logprobs", None)
        bodies.append(body)
    return bodies


@pytest.fixture(scope="module")
def alone(port: int) -> list[Answer]:
    """The crowd's answers, each asked for when nothing else ran."""
    answers = ask_alone(port, crowd())
    ends = [set(answer.reasons.values()) for answer in answers]
    assert [end for i, end in enumerate(ends) if i not in FORMS] == [{"length"}] * (8 - len(FORMS))
    assert all(end and end <= {"length", "stop", "tool_calls"} for end in ends)
    assert metric(port, "masked_tokens_total") > 100
    assert len({str(answer.said) for answer in answers}) == 8
    return answers


def said(answers: list[Answer]) -> list[Any]:
    return [answer.said for answer in answers]


# ---- a bad request beside good ones ----

BAD_IDS = [-1, VOCAB, 2**31, 2**63, True, 1.0, "abc"]


def test_ids_that_do_not_exist_are_refused_and_a_neighbour_notices_nothing(port):
    """A05"""
    body = {"prompt": [5, 6, 7], "max_tokens": 200, "seed": 4, "logprobs": 0, "frequency_penalty": 0.5}
    (expected,) = ask_all(port, [body])
    refused = [
        {"max_tokens": 1, **bad}
        for i in BAD_IDS
        for bad in (
            {"prompt": [5, i]},
            {"prompt": "a", "stop_token_ids": [i]},
            {"prompt": "a", "allowed_token_ids": [i]},
            {"prompt": "a", "logit_bias": {str(i): 1}},
            {"prompt": "a", "bad_words": [i] if i != "abc" else "abc"},
        )
    ]
    neighbour, *answers = ask_all(port, [body, *refused])
    assert (neighbour.said, neighbour.logprobs) == (expected.said, expected.logprobs)
    for body, answer in zip(refused, answers, strict=True):
        named = [name for name in body if name not in ("max_tokens", "prompt")] or ["prompt"]
        assert (answer.status, answer.error["param"]) == (400, named[0]), body


MASKED = {"structured_outputs": {"regex": "[a-z ]+(yes|no)[a-z ]*"}}


@pytest.mark.parametrize(
    "form", [pytest.param({}, id="free"), pytest.param(MASKED, id="masked", marks=pytest.mark.slow)]
)
def test_what_neighbours_say_and_pages_hold_changes_no_bit(port, order, form):
    """A27: 200 trials; before every admission the pages that nobody owns, and page 0, are filled with NaN. Where the
    target is masked, all its neighbours are too.
    """
    order(poison=True)
    draw, masked = random.Random(27), metric(port, "masked_tokens_total")
    found = set()
    for _ in range(50):
        neighbours = [[draw.randrange(VOCAB) for _ in range(length)] for length in (9, 40, 17)]
        prompts = [[5, 6, 7] * 7, neighbours[0], [5, 6, 7] * 7, *neighbours[1:], [5, 6, 7] * 7, [5, 6, 7] * 7]
        body = {"prompt": prompts, "max_tokens": 6, "temperature": 1, "seed": 9, "logprobs": 3, "ignore_eos": True}
        body |= form
        response = httpx2.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json=body, timeout=60)
        choices = strict_json(response.content)["choices"]
        found |= {str((choices[i]["text"], choices[i]["logprobs"])) for i in (0, 2, 5, 6)}
        others = {choices[i]["text"] for i in (1, 3, 4)}
        assert len(others) > 1, "the neighbours say this and that"
    assert len(found) == 1
    assert (metric(port, "masked_tokens_total") > masked) == bool(form)


# ---- a small pool, seeds ----


@pytest.mark.slow
def test_a_pool_that_is_too_small_for_all_changes_no_answer(port):
    """A31: preempted and computed again, streamed without a gap or a repeat, and counted once; forms or none."""
    bodies = [
        {"prompt": [i, 7], "max_tokens": 200, "seed": i, "n": 1 + (i == 2), "logprobs": 0 if i % 2 else None}
        | ({"frequency_penalty": 0.4, "min_tokens": 9} if i % 3 else {"stop": ["zqx"]})
        | ({"structured_outputs": {"regex": "([a-z0-9 ]|known)+"}} if i % 4 > 1 else {})
        for i in range(12)
    ]
    expected = ask_alone(port, bodies)
    before = counters(port)
    assert said(ask_all(port, bodies)) == said(expected)
    wait_until(lambda: grown(port, before, "preemptions_total") >= 3)
    assert all(answer.usage["completion_tokens"] == 200 * len(answer.texts) for answer in expected)


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, MASKED], ids=["free", "masked"])
def test_a_seed_gives_the_same_alone_in_a_crowd_and_after_a_restart_and_none_gives_others(llm, port, form):
    """A35 (a); for preemption see above."""
    seeded = {"prompt": [3, 1, 4], "max_tokens": 30, "temperature": 1.3, "seed": 77, "n": 3} | form
    (expected,) = ask_all(port, [seeded])
    assert len(set(expected.texts.values())) == 3
    assert ask_all(port, [*crowd(4), seeded, *crowd(2), seeded])[4].said == expected.said
    unseeded = {name: value for name, value in seeded.items() if name != "seed"}
    texts = [text for answer in ask_all(port, [unseeded] * 4) for text in answer.texts.values()]
    assert len({*texts, *expected.texts.values()}) == 4 * 3 + 3
    os.kill(llm.replicas.transports[0].pid, signal.SIGKILL)
    assert ask_all(port, [seeded])[0].said == expected.said


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_draws_follow_the_models_probabilities(port, masked):
    """A35 (a): 10,000 draws over HTTP pass a chi-square test at one in a million; those of a form among its tokens."""
    ask = {"prompt": [3, 1, 4], "max_tokens": 1, "temperature": 1, "logprobs": 20}
    top = post(port, ask).json()["choices"][0]["logprobs"]["top_logprobs"][0]
    ranked = sorted(top.items(), key=lambda item: -item[1])
    count, limit = (5, 33.4) if masked else (8, 40.5)  # of tokens, and of chi-square with one degree of freedom less
    if masked:
        ranked = [(name, value) for name, value in ranked if len(name) == 1 and name.isascii() and name.isprintable()]
        ask["structured_outputs"] = {"choice": [name for name, _ in ranked[:count]]}
    else:
        ask["top_k"] = 8
    odds = {name: math.exp(value) for name, value in ranked[:count]}
    assert len(odds) == count, "tokens with names of their own"
    counts: Counter[str] = Counter()
    while counts.total() < 10_000:
        body = ask | {"prompt": [[3, 1, 4]] * 16, "n": 16, "logprobs": 0}
        counts.update(choice["logprobs"]["tokens"][0] for choice in post(port, body).json()["choices"])
    expected = {name: counts.total() * value / sum(odds.values()) for name, value in odds.items()}
    assert counts.keys() <= expected.keys()
    chi_square = sum((counts[name] - value) ** 2 / value for name, value in expected.items())
    assert chi_square < limit


def post(port: int, body: dict[str, Any], path: str = COMPLETIONS) -> httpx2.Response:
    return httpx2.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_every_body_is_strict_json_where_almost_everything_is_masked(port, path, stream):
    """A35 (b); and A04: as many logprobs as were asked for, of completions the drawn token's beside them."""
    ask = {"max_tokens": 3, "allowed_token_ids": [65, 66], "bad_words": ["b"], "min_tokens": 3, "temperature": 2}
    ask |= {"logit_bias": {str(i): -100 for i in range(300)}, "top_p": 0.01, "min_p": 1, "top_k": 1}
    if path == CHAT:
        ask |= {"messages": USER, "logprobs": True, "top_logprobs": 20}
    else:
        ask |= {"prompt": [5, 6, 7], "logprobs": 20, "echo": True}
    response = post(port, ask | {"stream": stream} | ({} if stream else {"prompt_logprobs": 20}), path)
    assert response.status_code == 200
    frames = [response.text]
    if stream:
        frames = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    values = [value for frame in frames for value in numbers(strict_json(frame))]
    tops = [len(top) for frame in frames for choice in strict_json(frame)["choices"] for top in tops_of(choice)]
    assert tops and max(tops) <= (20 if path == CHAT else 21)
    assert len(values) > 60 and all(map(math.isfinite, values))


def tops_of(choice: dict[str, Any]) -> list[Any]:
    """The most likely tokens at each place, where there are any."""
    found = choice["logprobs"] or {"content": []}
    tops = found["top_logprobs"] if "tokens" in found else [entry["top_logprobs"] for entry in found["content"]]
    return [top for top in tops if top is not None]


def numbers(tree: Any) -> Iterator[float]:
    if isinstance(tree, dict | list):
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from numbers(child)
    elif isinstance(tree, int | float):
        yield tree


# ---- failed steps ----


@pytest.mark.parametrize("kind", ["run", "exhausted", "wait"])
def test_a_step_that_fails_once_costs_nobody_anything(llm, port, order, alone, kind):
    """A42: the same process, one recovery, everyone back within 2 s and with the tokens they have alone."""
    pid, before = llm.replicas.transports[0].pid, counters(port)
    order(add=Fault(kind, step=25))
    answers = ask_all(port, crowd())
    assert said(answers) == said(alone)
    assert llm.replicas.transports[0].pid == pid
    wait_until(lambda: grown(port, before, "engine_recoveries_total") == 1)
    assert grown(port, before, "engine_restarts_total") == 0
    assert max(answer.longest_gap_s for answer in answers) < 2
    assert httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_always_fails_gets_the_only_500(llm, port, order, alone, stream):
    """A42"""
    pid = llm.replicas.transports[0].pid
    order(add=Fault("wait", times=None, token=NEVER_SAID))
    bad = {"prompt": [1, 2, NEVER_SAID], "max_tokens": 60, "stream": stream}
    *answers, failed = ask_all(port, [*crowd(), bad])
    assert said(answers) == said(alone)
    assert (failed.status, failed.error["code"]) == (500, "step_failed")
    assert llm.replicas.transports[0].pid == pid


def test_a_row_that_is_not_finite_ends_its_request_alone(port, order, alone):
    """A43"""
    before = counters(port)
    order(add=Fault("nan", step=25, row=3))
    answers = ask_all(port, crowd())
    (failed,) = [i for i, answer in enumerate(answers) if answer.error]
    assert answers[failed].error["code"] == "non_finite"
    assert all(answers[i].said == alone[i].said for i in range(8) if i != failed)
    wait_until(lambda: grown(port, before, "nonfinite_rows_total") == 1)
    for i, text in answers[failed].texts.items():
        assert alone[failed].texts[i].startswith(text), "what came before it was right"


def test_a_masked_row_that_is_not_finite_ends_its_request_alone(port, order, alone):
    """A43 where every row of the step is masked."""
    masked, before = [2, 5, 6, 7], counters(port)
    order(add=Fault("nan", step=8, row=1))
    bodies = crowd()
    answers = dict(zip(masked, ask_all(port, [bodies[i] for i in masked]), strict=True))
    (failed,) = [i for i, answer in answers.items() if answer.error]
    assert answers[failed].error["code"] == "non_finite"
    assert all(answers[i].said == alone[i].said for i in masked if i != failed)
    wait_until(lambda: grown(port, before, "nonfinite_rows_total") == 1)
    for i, text in answers[failed].texts.items():
        assert alone[failed].texts[i].startswith(text), "what came before it was right"


def test_what_a_row_that_is_not_finite_computed_is_not_found_again(port, order):
    """A43"""
    prompt = [(k * 5) % 300 for k in range(40)]
    order(add=Fault("nan"))
    refused = post(port, {"prompt": prompt, "max_tokens": 4})
    assert (refused.status_code, error_of(refused)["code"]) == (500, "non_finite")
    found = [post(port, {"prompt": prompt, "max_tokens": 4, "temperature": 0}).json() for _ in range(2)]
    assert [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in found] == [0, 32]
    assert found[0]["choices"] == found[1]["choices"]


@pytest.mark.parametrize("kind", ["run", "wait", "kill"])
def test_an_engine_that_fails_under_embeddings_and_streams_costs_none_of_them(port, order, alone, kind):
    """Computed again in the same process, or in a new one."""
    inputs = [[(i * 31 + k * 11) % 320 for k in range(20 + 12 * i)] for i in range(16)]
    asked = {"input": inputs, "pooling": "mean", "normalize": False}

    def embed() -> list[float]:
        return [number for item in post(port, asked, EMBEDDINGS).json()["data"] for number in item["embedding"]]

    expected, before = embed(), counters(port)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(embed)
        order(add=Fault(kind, step=10))
        assert said(ask_all(port, crowd())) == said(alone)
        assert found.result() == pytest.approx(expected, abs=1e-4)
    name = "engine_restarts_total" if kind == "kill" else "engine_recoveries_total"
    wait_until(lambda: grown(port, before, name) == 1)


# ---- the engine process dies ----


def start_s(config, child) -> float:
    """How long an engine process takes to start, all of it, from the same executables."""
    transport = EngineProcess(config, ignore, child[:-1])
    watch = Stopwatch()
    transport.start(lambda outputs: None, lambda error: None, whole=True)
    seconds = watch.seconds()
    transport.close()
    return seconds


def test_kill_9_under_16_streams_costs_a_warm_start_and_no_token(llm, port, config, child, order):
    """They are resumed as soon as the next engine can start; counters only grow."""
    bodies = crowd(16, max_tokens=100)
    expected = ask_all(port, bodies)
    warm_s = start_s(config, child)
    generated, restarts = metric(port, "generated_tokens_total"), metric(port, "engine_restarts_total")
    order(add=Fault("hang", times=None, seconds=0.004))  # the first engine must not be done before it is killed
    frames = itertools.count(1)

    def kill() -> None:
        if next(frames) == 200:
            os.kill(llm.replicas.transports[0].pid, signal.SIGKILL)

    answers = ask_all(port, bodies, kill)
    assert said(answers) == said(expected)
    assert metric(port, "engine_restarts_total") == restarts + 1
    assert metric(port, "generated_tokens_total") > generated
    gap_s, warm_s = max(answer.longest_gap_s for answer in answers), max(warm_s, start_s(config, child))
    assert 0.1 < gap_s < warm_s + 1, f"a start takes {warm_s:.1f} s, the longest silence was {gap_s:.1f} s"


@pytest.mark.slow
def test_a_request_that_kills_every_engine_is_given_up_and_costs_the_others_no_token(port, child, order, alone):
    """Three engines end under it, the third under it alone."""
    before, deadly = counters(port), Fault("kill", times=None, token=NEVER_SAID)
    order(add=deadly)
    faults = Path(child[2])
    faults.write_bytes(msgspec.json.encode([deadly]))
    try:
        *answers, failed = ask_all(port, [*crowd(), {"prompt": [1, 2, NEVER_SAID], "max_tokens": 60}])
    finally:
        faults.write_text("[]")
    assert said(answers) == said(alone)
    assert failed.status == 500 or failed.error
    assert "ended 3 times in a row" in failed.error["message"]
    wait_until(lambda: grown(port, before, "engine_restarts_total") == 3)
    assert httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
