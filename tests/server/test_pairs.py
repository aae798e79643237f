"""Every two features that one request may have, together: what the answer says must not depend on how it is asked for.

test_interactions.py has the pairs whose outcome is particular; here each pair, over the same engine of a dry run, whose
pool is too small for all that ask at once, is held to the same laws:
- what changes no word (a stream, logprobs, a priority, a salt, a session, an echo) leaves the words and the end of the
  answer that was asked for without it, alone;
- each choice ends once, has as many logprobs as tokens, and shows no stop string unless it was asked to;
- what cannot go together is refused by name.
"""

import itertools
import re
from collections.abc import Iterator
from json import loads
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.crowd import ask_together
from tests.server.dry import dry_llm
from tests.server.http import CHAT, COMPLETIONS, error_of, events, live, wait_until

PROMPT = "the horse looked at five friends"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
BASE: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 32, "temperature": 1, "seed": 3},
    CHAT: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 32, "temperature": 1, "seed": 3},
}
STOPS = {"stop": ["e", "or"]}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "is_old": {"type": "boolean"}},
    "required": ["name", "is_old"],
    "additionalProperties": False,
}
REGEX = "[a-z]{3,30}( [a-z]{2,9}){2}"
FORMS = frozenset({"schema", "regex", "calls"})
FREE = frozenset({"stop", "stop shown", "stop tokens", "tools", "tools unused"})  # which end or replace a form
# Fields that change words, and fields that do not. {} in a value is a number of its own for each request.
WORDS: dict[str, dict[str, Any]] = {
    "n": {"n": 2},
    "stop": STOPS,
    "stop shown": STOPS | {"include_stop_str_in_output": True},
    "stop tokens": {"stop_token_ids": list(range(300, 700, 3))},
    "short": {"max_tokens": 5},
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": 20},
    "bad_words": {"bad_words": ["the", "a"]},
    "allowed": {"allowed_token_ids": list(range(300, 1500))},
    "truncation": {"truncate_prompt_tokens": 4},
    "special tokens": {"skip_special_tokens": False},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}},
        "max_tokens": 60,
    },
    "regex": {"structured_outputs": {"regex": REGEX}},
}
SILENT: dict[str, dict[str, Any]] = {
    "prompt_logprobs": {"prompt_logprobs": 1},
    "priority": {"priority": -3},
    "salt": {"cache_salt": "salt-{}"},
    "session": {"session_id": "session-{}"},
    "metrics": {"include_metrics": True},
}
OWN_WORDS: dict[str, dict[str, dict[str, Any]]] = {
    COMPLETIONS: {"two prompts": {"prompt": [PROMPT, "a river"]}},
    CHAT: {
        "tools": {"tools": TOOLS},
        "tools unused": {"tools": TOOLS, "tool_choice": "none"},
        "calls": {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": PERSON}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_tokens": 60,
        },
        "no thoughts": {"reasoning_effort": "none"},
        "thoughts": {"reasoning_effort": "low"},
        "budget": {"thinking_token_budget": 5},
        "going on": {
            "messages": [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "Once"}],
            "continue_final_message": True,
        },
    },
}
OWN_SILENT: dict[str, dict[str, dict[str, Any]]] = {
    COMPLETIONS: {"logprobs": {"logprobs": 2}, "echo": {"echo": True}},
    CHAT: {"logprobs": {"logprobs": True, "top_logprobs": 2}},
}
# What is refused, and the field that the refusal names
REFUSED = {
    frozenset({"session", "n"}): "session_id",
    frozenset({"session", "two prompts"}): "session_id",
    frozenset({"min_tokens", "short"}): "min_tokens",
    frozenset({"budget", "logprobs"}): "thinking_token_budget",
    frozenset({"regex", "schema"}): "response_format",
    frozenset({"calls", "regex"}): "tool_choice",
    frozenset({"calls", "schema"}): "tool_choice",
}


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    return dry_llm(0, max_model_len=232, max_num_seqs=12, max_num_batched_tokens=64, num_pages=30, page_size=8)


@pytest.fixture(scope="module")
def base(llm: AsyncLLM) -> Iterator[str]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield f"http://127.0.0.1:{port}"


def pieces_of(frames: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By choice: everything that its pieces say, joined; and that it ended once, after all else."""
    choices: dict[int, dict[str, Any]] = {}
    for piece in (choice for frame in frames for choice in frame["choices"]):
        joined = choices.setdefault(piece["index"], {"text": "", "form": "", "finish": None, "tokens": []})
        assert joined["finish"] is None, "nothing comes after the end"
        part = piece.get("delta") or piece.get("message") or piece
        joined["text"] += (part.get("reasoning") or "") + (part.get("content") or part.get("text") or "")
        joined["form"] += part.get("content") or part.get("text") or ""
        joined["form"] += "".join(call["function"].get("arguments") or "" for call in part.get("tool_calls") or ())
        joined["finish"] = piece["finish_reason"]
        if found := piece.get("logprobs"):
            joined["tokens"] += [each["token"] for each in found["content"]] if "content" in found else found["tokens"]
    assert all(joined["finish"] for joined in choices.values()), "each one ends"
    return choices


def prompts_of(body: dict[str, Any]) -> list[str]:
    """Of each choice."""
    prompt = body.get("prompt", "")
    return [each for each in (prompt if isinstance(prompt, list) else [prompt]) for _ in range(body.get("n", 1))]


def laws_of_one(names: frozenset[str], body: dict[str, Any], choices: dict[int, Any], usage: dict[str, Any]) -> None:
    """What holds for an answer by itself."""
    assert sorted(choices) == list(range(len(prompts_of(body))))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    if "logprobs" in names:
        echoed = usage["prompt_tokens"] * body.get("n", 1) if "echo" in names else 0
        num_tokens = sum(len(choice["tokens"]) for choice in choices.values())
        assert num_tokens == usage["completion_tokens"] + echoed
    if "stop" in names and names.isdisjoint({"stop shown", "echo", "min_tokens"}):
        assert not any(stop in choice["text"] for stop in STOPS["stop"] for choice in choices.values())
    if (form := names & FORMS) and names.isdisjoint(FREE):
        prompts = prompts_of(body) if "echo" in names else [""] * len(choices)
        for index, prompt in enumerate(prompts):
            if choices[index]["finish"] in ("stop", "tool_calls"):
                text = choices[index]["form"].removeprefix(prompt)
                assert re.fullmatch(REGEX, text) if form == {"regex"} else jsonschema_rs.is_valid(PERSON, loads(text))


def law_of_words(names: frozenset[str], body: dict[str, Any], choices: dict[int, Any], alone: dict[int, Any]) -> None:
    """It says what is said without what changes no word, behind the prompt where that is echoed."""
    for index, prompt in enumerate(prompts_of(body)):
        found, expected = choices[index], alone[index]
        assert found["finish"] == expected["finish"]
        if "calls" in names and found["finish"] == "length":
            continue  # of half a call a stream shows arguments, a whole answer the text
        assert found["text"].endswith(expected["text"]) and found["form"].endswith(expected["form"])
        before = found["text"].removesuffix(expected["text"])
        if "truncation" in names:
            assert prompt.endswith(before) and bool(before) == ("echo" in names)
        else:
            assert before == (prompt if "echo" in names else "")


def request(path: str, names: frozenset[str], number: int, *, streamed: bool) -> dict[str, Any]:
    body = dict(BASE[path])
    for name in sorted(names):
        fields = (WORDS | SILENT | OWN_WORDS[path] | OWN_SILENT[path])[name]
        body |= {
            key: value.format(number) if value in ("salt-{}", "session-{}") else value for key, value in fields.items()
        }
    return body | (USAGE if streamed else {})


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_every_two_features_go_together(path, base, llm):
    changing = WORDS.keys() | OWN_WORDS[path].keys()
    every = sorted(changing | SILENT.keys() | OWN_SILENT[path].keys())
    pairs = [frozenset(pair) for pair in itertools.combinations_with_replacement(every, 2)]
    asked = [
        (names, request(path, names, 2 * i + streamed, streamed=streamed))
        for i, names in enumerate(pairs)
        for streamed in (False, True)
    ]
    alone_bodies = {names & changing: request(path, names & changing, 0, streamed=False) for names in pairs}
    alone_answers = ask_together(base, list(alone_bodies.values()), at_once=1)
    alone = {
        names: pieces_of([answer.json()])
        for names, answer in zip(alone_bodies, alone_answers, strict=True)
        if answer.status_code == 200
    }
    preemptions = llm.stats().preemptions
    answers = ask_together(base, [body for _, body in asked], at_once=16)
    assert llm.stats().preemptions > preemptions, "there was too little room"
    faults = {}
    for (names, body), answer in zip(asked, answers, strict=True):
        try:
            check(names, body, answer, alone.get(names & changing))
        except (AssertionError, KeyError) as fault:
            faults[tuple(sorted(names)), "stream" in body] = str(fault) or repr(answer.text[:300])
    assert faults == {}, "\n".join(f"{k}: {v}" for k, v in faults.items())
    with httpx2.Client(base_url=base) as client:
        for session in client.get("/v1/sessions").json()["data"]:
            assert client.delete(f"/v1/sessions/{session['id']}").status_code == 200
    wait_until(lambda: (llm.stats().running, llm.stats().waiting, llm.stats().pages_owned) == (0, 0, 0))
    assert llm.stats().pages_free + llm.stats().pages_cached == llm.stats().pages_total


def check(names: frozenset[str], body: dict[str, Any], answer: httpx2.Response, alone: Any) -> None:
    refused = "prompt_logprobs" if "stream" in body and "prompt_logprobs" in names else REFUSED.get(names)
    if refused:
        assert (answer.status_code, error_of(answer)["param"]) == (400, refused)
        return
    if names & FORMS and "allowed" in names:  # in which neither of the forms can be written
        error = error_of(answer) if answer.status_code != 200 else events(answer.text)[-1]["error"]
        assert error["code"] == "no_token_left"
        return
    assert answer.status_code == 200, answer.text
    frames = events(answer.text) if "stream" in body else [answer.json()]
    choices, usage = pieces_of(frames), frames[-1]["usage"]
    laws_of_one(names, body, choices, usage)
    law_of_words(names, body, choices, alone)
