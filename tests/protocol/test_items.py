"""What an item of /v1/responses says, of all types that the openai package has, is in the conversation."""

import contextlib
import json
from typing import Any

import openai.types.responses as response_types

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.response_calls import CALLS, RESULTS
from tests.protocol.test_histories import drawn, of_responses
from tests.support.sampled import WORDS

# Beside what an item says: names, what others have encrypted, where a call ran, what a text is taken from
BESIDE = {"id", "caller_id", "container_id", "namespace", "server_label", "approval_request_id", "encrypted_content"}
BESIDE |= {"fingerprint", "annotations", "logprobs", "environment"}


def marked(value: Any, marks: list[str]) -> Any:
    """The same, each of its drawn texts being one of its own; `marks` has those that say something."""
    if isinstance(value, dict):
        return {name: marked(each, [] if name in BESIDE else marks) for name, each in value.items()}
    if isinstance(value, list):
        return [marked(each, marks) for each in value]
    if value in WORDS:
        marks.append(f"text{len(marks)}.")
        return marks[-1]
    return value


def test_what_an_item_of_openai_s_types_says_is_in_the_conversation():
    read = set()
    for item in drawn(response_types.ResponseInputItemParam, 800):
        if item.get("type") == "reasoning" and item.get("content"):
            item["summary"] = []  # the thoughts themselves win
        if item.get("type") == "mcp_call" and item.get("output") is not None:
            item["error"] = None
        if item.get("type") == "function_call_output":
            item = {name: each for name, each in item.items() if name != "name"} | {"call_id": "x"}
        marks: list[str] = []
        item = marked(item, marks)
        with contextlib.suppress(InvalidRequest):  # of which test_histories.py says which may be
            said = json.dumps(of_responses([item]))
            assert [mark for mark in marks if mark not in said] == [], item
            read.add(item.get("type"))
    assert read >= {"message", "reasoning", *CALLS, *RESULTS}
