"""Answers led to their end within max_tokens, beside every other field and event that could get in the way, over the
engine process of a dry run, whose tokens are drawn without a thought from what their masks leave: an object is never
closed for any other reason. What only a model's numbers show (biases, penalties) is in tests/llm/test_structured.py.
"""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.dry import dry_llm
from tests.server.http import CHAT, COMPLETIONS, USER, error_of, events, live, wait_until
from tests.server.streams import ask_all, ask_alone

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
FREE = {"response_format": FORM, "max_tokens": 32, "temperature": 1}
CLOSING = FREE | {"close_within_max_tokens": True}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PERSON}}]
SEEDS = range(4)


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    """Four sequences share thirty-nine pages, which are too few for long ones."""
    return dry_llm(0.001, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, num_pages=40, page_size=16)


@pytest.fixture(scope="module")
def port(llm: AsyncLLM) -> Iterator[int]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


@pytest.fixture
def client(llm: AsyncLLM, port: int) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    wait_until(lambda: (llm.stats().running, llm.stats().waiting, llm.stats().pages_owned) == (0, 0, 0))


def whole(client: httpx2.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of an answer, each as pieces(...) has it."""
    answer = client.post(path, json=({"messages": USER} if path == CHAT else {"prompt": "once"}) | fields)
    assert answer.status_code == 200, answer.text
    return pieces([answer.json()])


def streamed(client: httpx2.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    body = ({"messages": USER} if path == CHAT else {"prompt": "once"}) | fields
    return pieces(events(client.post(path, json=body | {"stream": True}).text))


def pieces(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for piece in (choice for frame in frames for choice in frame["choices"]):
        choice = choices.setdefault(piece["index"], {"text": "", "thoughts": "", "call": "", "tokens": 0, "end": None})
        assert choice["end"] is None, "nothing comes after the end"
        part = piece.get("delta") or piece.get("message") or piece
        choice["text"] += part.get("content") or part.get("text") or ""
        choice["thoughts"] += part.get("reasoning") or ""
        choice["call"] += "".join(call["function"]["arguments"] for call in part.get("tool_calls") or ())
        if found := piece.get("logprobs"):
            choice["tokens"] += len(found.get("content") or found.get("tokens"))
        choice["end"] = piece["finish_reason"]
    return [choices[index] for index in sorted(choices)]


def is_person(text: str) -> bool:
    try:
        return bool(jsonschema_rs.is_valid(PERSON, json.loads(text)))
    except ValueError:
        return False


def test_left_alone_such_answers_are_cut_off(client):
    ends = [whole(client, CHAT, **FREE, seed=seed)[0]["end"] for seed in SEEDS]
    assert ends.count("length") > len(ends) / 2, "else the other tests show nothing"


BESIDE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "n": {"n": 3},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {"300": 50, "301": -100}},
    "fewer tokens to draw from": {"top_k": 20, "top_p": 0.5, "min_p": 0.1},
    "min_tokens": {"min_tokens": 20},
    "min_tokens of all": {"min_tokens": 32},
    "ignore_eos": {"ignore_eos": True},
    "a stop string that does not come": {"stop": ["\u2603"]},
    "priority": {"priority": 3},
    "salt": {"cache_salt": "x"},
    "no thoughts": {"reasoning_effort": "none"},
}


PAIRS = [(name, path) for name in BESIDE for path in (CHAT, COMPLETIONS) if path == CHAT or name != "no thoughts"]


@pytest.mark.parametrize(("name", "path"), PAIRS)
def test_beside_each_field_every_answer_is_of_the_form(client, name, path):
    fields = CLOSING | BESIDE[name]
    logprobs = {"logprobs": True} if path == CHAT else {"logprobs": 1}
    for seed in SEEDS:
        choices = whole(client, path, **fields, **logprobs, seed=seed)
        assert len(choices) == fields.get("n", 1)
        for choice in choices:
            assert choice["end"] == "stop" and is_person(choice["text"]), choice
            assert fields.get("min_tokens", 0) <= choice["tokens"] <= 32
        assert streamed(client, path, **fields, **logprobs, seed=seed) == choices


@pytest.mark.parametrize("read", [whole, streamed])
def test_a_stop_string_may_end_the_answer_before_it_is_closed(client, read):
    early = 0
    for seed in range(8):
        (choice,) = read(client, CHAT, **CLOSING, seed=seed, stop=["e", '"a'])
        assert choice["end"] == "stop" and "e" not in choice["text"]
        early += not is_person(choice["text"])
    assert early


@pytest.mark.parametrize("read", [whole, streamed])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_tool_calls_are_closed_like_answers(client, choice, read):
    """With auto an answer of the form, or a call; else always a call, whose arguments are whole."""
    fields = (CLOSING if choice == "auto" else CLOSING | {"response_format": None}) | {"max_tokens": 48}
    seen = set()
    for seed in range(8):
        (found,) = read(client, CHAT, **fields, seed=seed, tools=TOOLS, tool_choice=choice)
        seen.add(bool(found["call"]))
        assert found["end"] == ("tool_calls" if found["call"] and isinstance(choice, str) else "stop")
        assert is_person(found["call"] or found["text"]), found
    assert seen == ({False, True} if choice == "auto" else {True})


@pytest.mark.parametrize("read", [whole, streamed])
@pytest.mark.parametrize("budget", [None, 4])
def test_thoughts_leave_room_for_the_shortest_answer(client, budget, read):
    """Such thoughts never end by themselves; a budget of their own leaves the answer more."""
    fields = CLOSING | {"reasoning_effort": "low", "max_tokens": 40, "thinking_token_budget": budget}
    num_thoughtful = 0
    for seed in range(8):
        (choice,) = read(client, CHAT, **fields, seed=seed)
        assert choice["end"] == "stop" and is_person(choice["text"]), choice
        num_thoughtful += bool(choice["thoughts"])
    assert num_thoughtful


def test_what_cannot_go_together_is_refused_by_name(client):
    for fields, name in (
        ({"min_tokens": 33}, "min_tokens"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"thinking_token_budget": 4, "logprobs": True}, "thinking_token_budget"),
        ({"regex": "x"}, "regex"),
    ):
        for stream in (False, True):
            response = client.post(CHAT, json={"messages": USER, "stream": stream} | CLOSING | fields)
            assert (response.status_code, error_of(response)["param"]) == (400, name)


def test_a_prefix_that_is_known_changes_no_word(client):
    prompt = [7 + i % 50 for i in range(100)]
    body = {"prompt": prompt, "seed": 5} | CLOSING
    first, second = (client.post(COMPLETIONS, json=body | {"cache_salt": "closing"}).json() for _ in range(2))
    assert [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, second)] == [0, 96]
    assert first["choices"] == second["choices"] and is_person(first["choices"][0]["text"])


# more than there are pages for
CROWD = [
    {"prompt": f"number {i}", "seed": i, "ignore_eos": False} | CLOSING | {"max_tokens": 200 + i} for i in range(6)
]


def test_a_crowd_that_is_preempted_closes_as_each_does_alone(client, llm, port):
    alone = ask_alone(port, CROWD)
    before = llm.stats().preemptions
    assert [answer.said for answer in ask_all(port, CROWD)] == [answer.said for answer in alone]
    assert llm.stats().preemptions > before
    for answer in alone:
        assert answer.reasons == {0: "stop"} and is_person(answer.texts[0])


def test_an_answer_goes_on_to_its_end_in_a_new_engine(client, llm, port):
    (alone,) = ask_alone(port, CROWD[:1])
    restarts, frames = llm.stats().restarts, 0

    def kill_at_the_tenth_frame() -> None:
        nonlocal frames
        frames += 1
        if frames == 10:
            os.kill(llm.replicas.transports[0].pid, signal.SIGKILL)

    (answer,) = ask_all(port, CROWD[:1], kill_at_the_tenth_frame)
    assert answer.said == alone.said and is_person(answer.texts[0])
    assert llm.stats().restarts == restarts + 1
