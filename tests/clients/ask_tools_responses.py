"""Two turns with a tool over the official openai client's `responses`. Its argument and what it prints: see
test_tool_loops.py.
"""

import json
import sys
from typing import Any

import openai

ASKED = json.loads(sys.argv[1])
FUNCTION = ASKED["tool"]
TOOL = {"type": "function", **FUNCTION}
BODY = {"model": ASKED["model"], "tools": [TOOL], "temperature": 0, "max_output_tokens": 300}


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def told(response: Any) -> list[Any]:
    return [[[call.name, call.arguments] for call in calls_of(response)], response.status]


def results(response: Any) -> list[dict[str, Any]]:
    output = ASKED["result"]
    return [{"type": "function_call_output", "call_id": c.call_id, "output": output} for c in calls_of(response)]


def main() -> None:
    client = openai.OpenAI(base_url=ASKED["base"] + "/v1", api_key="none", max_retries=0)
    responses = client.responses
    question: list[Any] = [{"role": "user", "content": ASKED["question"]}]
    seen: dict[str, Any] = {}
    for effort in ("none", "low"):
        body = BODY | {"reasoning": {"effort": effort}}
        whole = responses.create(**body, input=question)
        with responses.stream(**body, input=question) as stream:
            deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        stateless = responses.create(**body, input=[*question, *whole.output, *results(whole)])
        stored = responses.create(**body, input=results(final), previous_response_id=final.id)
        seen[effort] = {
            "calls": told(whole),
            "streamed": told(final),
            "deltas": "".join(deltas),
            "kinds": [item.type for item in whole.output] == [item.type for item in final.output],
            "stateless": [stateless.output_text, *told(stateless)],
            "stored": [stored.output_text, *told(stored)],
        }
    must = [
        responses.create(**BODY, input="Hello!", tool_choice=choice)
        for choice in ("required", {"type": "function", "name": FUNCTION["name"]})
    ]
    seen["must"] = [calls_of(response)[0].name for response in must]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
