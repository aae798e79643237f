"""The official anthropic client. Its argument and what it prints: see test_clients.py."""

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic

ASKED = json.loads(sys.argv[1])
BODY, ROOT = ASKED["message"], ASKED["base"].removesuffix("/v1")


def end_of(message: Any) -> list[Any]:
    return ["".join(block.text for block in message.content), message.stop_reason, message.stop_sequence]


def usage_of(message: Any) -> list[int]:
    return [message.usage.input_tokens + message.usage.cache_read_input_tokens, message.usage.output_tokens]


def failure(ask: Callable[[], Any]) -> list[Any]:
    try:
        ask()
    except anthropic.APIStatusError as error:
        has_id = error.request_id == error.body["request_id"] == error.response.headers["request-id"]
        return [type(error).__name__, error.status_code, error.body["error"]["type"], has_id]
    return []


def main() -> None:
    client = anthropic.Anthropic(base_url=ROOT, api_key=ASKED["key"], max_retries=0)
    bearer = anthropic.Anthropic(base_url=ROOT, auth_token=ASKED["key"], api_key=None, max_retries=0)
    stranger = anthropic.Anthropic(base_url=ROOT, api_key="sk-of-a-stranger", max_retries=0)
    messages = client.messages
    whole = messages.create(**BODY)
    events = list(messages.create(**BODY, stream=True))
    with messages.stream(**BODY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    seen = {
        "version": anthropic.__version__.split(".")[0],
        "answer": end_of(whole),
        "usage": usage_of(whole),
        "streamed": "".join(event.delta.text for event in events if event.type == "content_block_delta"),
        "events": [kind for kind, _ in itertools.groupby(event.type for event in events)],
        "accumulated": [text, *end_of(final), *usage_of(final)],
        "stop": end_of(messages.create(**BODY, stop_sequences=[ASKED["stop"]])),
        "system": end_of(messages.create(**BODY, system=[{"type": "text", "text": ASKED["system"]}])),
        "tokens": messages.count_tokens(model=BODY["model"], messages=BODY["messages"]).input_tokens,
        "bearer": end_of(bearer.messages.create(**BODY)),
        "has_request_id": whole.id == f"msg_{whole._request_id}",
        "no_model": failure(lambda: messages.create(**BODY | {"model": "claude-9"})),
        "bad_value": failure(lambda: messages.create(**BODY | {"max_tokens": -1})),
        "too_long": failure(lambda: messages.create(**BODY | {"messages": [{"role": "user", "content": "x" * 10**6}]})),
        "no_key": failure(lambda: stranger.messages.create(**BODY)),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
