"""What the specification of Open Responses (openresponses.org, 2026-04-24) asks of a server of texts and functions,
written anew from it, and the order of the events of one response.
"""

from typing import Any

import jsonschema_rs

from tests.server.http import named_events

Schema = dict[str, Any]
STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
TEXT_OR_NULL, INTEGER_OR_NULL = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
STATUS = {"enum": ["in_progress", "completed", "incomplete"]}


def of(fields: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields)}


def one_of(*schemas: Schema) -> Schema:
    return {"oneOf": list(schemas)}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


LOGPROB = of({"token": STRING, "logprob": NUMBER, "bytes": listed(INTEGER)})
ENTRIES = {"logprobs": listed(LOGPROB)}
TEXT = of({"type": {"const": "output_text"}, "text": STRING, "annotations": {"type": "array"}, **ENTRIES})
THOUGHT = of({"type": {"const": "reasoning_text"}, "text": STRING})
MESSAGE = of(
    {
        "type": {"const": "message"},
        "id": STRING,
        "status": STATUS,
        "role": {"const": "assistant"},
        "content": listed(TEXT),
    }
)
CALL = of(
    {
        "type": {"const": "function_call"},
        **dict.fromkeys(("id", "call_id", "name", "arguments"), STRING),
        "status": STATUS,
    }
)
REASONING = of({"type": {"const": "reasoning"}, "id": STRING, "content": listed(THOUGHT), "summary": listed(THOUGHT)})
ITEM = one_of(MESSAGE, CALL, REASONING)
FUNCTION = of(
    {
        "type": {"const": "function"},
        "name": STRING,
        "description": TEXT_OR_NULL,
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    }
)
USAGE = of(
    {
        **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), INTEGER),
        "input_tokens_details": of({"cached_tokens": INTEGER}),
        "output_tokens_details": of({"reasoning_tokens": INTEGER}),
    }
)
NOTHING = {"type": "null"}
JSON_FORMAT: Schema = of({"type": {"const": "json_schema"}, "name": STRING, "schema": {"type": "object"}})
RESPONSE_FIELDS: dict[str, Schema] = {
    "id": STRING,
    "object": {"const": "response"},
    "created_at": INTEGER,
    "completed_at": INTEGER_OR_NULL,
    "status": STRING,
    "incomplete_details": one_of(of({"reason": STRING}), NOTHING),
    "model": STRING,
    "output": listed(ITEM),
    "error": one_of(of({"code": STRING, "message": STRING}), NOTHING),
    "tools": listed(FUNCTION),
    "tool_choice": one_of({"enum": ["none", "auto", "required"]}, of({"type": {"const": "function"}, "name": STRING})),
    "truncation": {"enum": ["auto", "disabled"]},
    "text": of({"format": one_of(of({"type": {"const": "text"}}), JSON_FORMAT)}),
    "reasoning": of({"effort": TEXT_OR_NULL, "summary": TEXT_OR_NULL}),
    "usage": one_of(USAGE, NOTHING),
    "metadata": {"type": "object"},
    "service_tier": STRING,
    **dict.fromkeys(("previous_response_id", "instructions", "safety_identifier", "prompt_cache_key"), TEXT_OR_NULL),
    **dict.fromkeys(("top_p", "presence_penalty", "frequency_penalty", "temperature"), NUMBER),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), BOOLEAN),
    **dict.fromkeys(("max_output_tokens", "max_tool_calls"), INTEGER_OR_NULL),
    "top_logprobs": INTEGER,
}
ITEM_S = {"item_id": STRING, "output_index": INTEGER}
PART_S = ITEM_S | {"content_index": INTEGER}
EVENT_FIELDS: dict[str, dict[str, Schema]] = {
    **dict.fromkeys(("created", "in_progress", "completed", "incomplete", "failed"), {"response": of(RESPONSE_FIELDS)}),
    **dict.fromkeys(("output_item.added", "output_item.done"), {"output_index": INTEGER, "item": ITEM}),
    **dict.fromkeys(("content_part.added", "content_part.done"), PART_S | {"part": one_of(TEXT, THOUGHT)}),
    "output_text.delta": PART_S | ENTRIES | {"delta": STRING},
    "output_text.done": PART_S | ENTRIES | {"text": STRING},
    "reasoning_text.delta": PART_S | {"delta": STRING},
    "reasoning_text.done": PART_S | {"text": STRING},
    "function_call_arguments.delta": ITEM_S | {"delta": STRING},
    "function_call_arguments.done": ITEM_S | {"arguments": STRING},
}
KINDS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def check_response(value: Any) -> None:
    jsonschema_rs.validate(of(RESPONSE_FIELDS), value)


def valid_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream: each has its fields, they are numbered, and each item that ends begins and is told."""
    found = named_events(text)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        fields = EVENT_FIELDS[event["type"].removeprefix("response.")]
        jsonschema_rs.validate(of(fields | {"sequence_number": INTEGER}), event)
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    for index, item in enumerate(found[-1]["response"]["output"]):
        _check_item([event for event in found if event.get("output_index") == index], item)
    return found


def _check_item(events: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Those of one item of the last response, from where it was added. One of a response that failed has no end."""
    kind = KINDS[item["type"]]
    said = item["arguments"] if kind == "function_call_arguments" else "".join(p["text"] for p in item["content"])
    assert events[0]["type"] == "response.output_item.added" and events[0]["item"]["status"] == "in_progress"
    assert {event.get("item_id", item["id"]) for event in events} == {events[0]["item"]["id"]} == {item["id"]}
    deltas = [event["delta"] for event in events if event["type"] == f"response.{kind}.delta"]
    assert "".join(deltas) == said
    if events[-1]["type"] == "response.output_item.done":
        assert events[-1]["item"] == item
        (done,) = [event for event in events if event["type"] == f"response.{kind}.done"]
        assert done["arguments" if kind == "function_call_arguments" else "text"] == said
    else:
        assert item["status"] == "incomplete"


def check_call_events(found: list[dict[str, Any]]) -> None:
    """The events that Open Responses' streamed tool call must have."""
    of_calls = [event["type"] for event in found if event.get("item", {}).get("type") == "function_call"]
    assert of_calls == ["response.output_item.added", "response.output_item.done"]
    kinds = [event["type"] for event in found]
    first, done = (kinds.index(f"response.function_call_arguments.{kind}") for kind in ("delta", "done"))
    assert kinds.index("response.output_item.added") < first < done < len(kinds) - 1
