"""Two turns with a tool over the official anthropic client. Its argument and what it prints: see test_tool_loops.py."""

import json
import sys
from typing import Any

import anthropic

ASKED = json.loads(sys.argv[1])
FUNCTION = ASKED["tool"]
TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
BODY = {"model": ASKED["model"], "tools": [TOOL], "max_tokens": 300, "extra_body": {"temperature": 0}}


def told(message: Any) -> list[Any]:
    blocks = [block for block in message.content if block.type == "tool_use"]
    return [[[block.name, block.input] for block in blocks], message.stop_reason]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def results(message: Any) -> dict[str, Any]:
    blocks = [block for block in message.content if block.type == "tool_use"]
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": b.id, "content": ASKED["result"]} for b in blocks],
    }


def main() -> None:
    client = anthropic.Anthropic(base_url=ASKED["base"], api_key="none", max_retries=0)
    question: dict[str, Any] = {"role": "user", "content": ASKED["question"]}
    seen: dict[str, Any] = {}
    for effort, thinking in (("none", {"type": "disabled"}), ("low", {"type": "enabled", "budget_tokens": 200})):
        ask = BODY | {"thinking": thinking}
        whole = client.messages.create(**ask, messages=[question])
        pieces = []
        with client.messages.stream(**ask, messages=[question]) as stream:
            for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                    pieces.append(event.delta.partial_json)
            final = stream.get_final_message()
        assert json.loads("".join(pieces)) == final.content[-1].input
        answers = []
        for first in (whole, final):
            turn = {"role": "assistant", "content": first.content}
            after = client.messages.create(**ask, messages=[question, turn, results(first)])
            answers.append([text_of(after), *told(after)])
        seen[effort] = {
            "calls": told(whole),
            "streamed": told(final),
            "kinds": [b.type for b in whole.content] == [b.type for b in final.content],
            "after": answers,
        }
    hello = [{"role": "user", "content": "Hello!"}]
    must = [
        client.messages.create(**BODY, messages=hello, tool_choice=choice)
        for choice in ({"type": "any"}, {"type": "tool", "name": FUNCTION["name"]})
    ]
    seen["must"] = [[told(message)[0][0][0], message.stop_reason] for message in must]
    counts = [
        client.messages.count_tokens(model=BODY["model"], messages=hello, **more) for more in ({"tools": [TOOL]}, {})
    ]
    seen["counted"] = counts[0].input_tokens > counts[1].input_tokens
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
