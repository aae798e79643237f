"""The official openai client, any version of it. Its argument and what it prints: see test_clients.py."""

import json
import sys
from typing import Any

import openai

ASKED = json.loads(sys.argv[1])
CHAT, TEXT = ASKED["chat"], ASKED["text"]


def connect(key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=ASKED["base"], api_key=key, max_retries=0)


def failure(client: openai.OpenAI, changes: dict[str, Any]) -> list[Any]:
    try:
        client.chat.completions.create(**CHAT | changes)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param]
    return []


def main() -> None:
    client = connect(ASKED["key"])
    chat = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    *chunks, last = client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    text = client.completions.create(**TEXT, logprobs=2)
    pieces = list(client.completions.create(**TEXT, stream=True))
    several = client.chat.completions.create(**CHAT, n=2)
    stopped = client.chat.completions.create(**CHAT, stop=[ASKED["stop"]])
    seen = {
        "version": openai.__version__.split(".")[0],
        "models": [model.id for model in client.models.list()],
        "chat": [chat.choices[0].message.content, chat.choices[0].finish_reason],
        "usage": [chat.usage.prompt_tokens, chat.usage.completion_tokens],
        "logprobs": [[entry.token, len(entry.top_logprobs)] for entry in chat.choices[0].logprobs.content],
        "streamed": ["".join(chunk.choices[0].delta.content for chunk in chunks), chunks[-1].choices[0].finish_reason],
        "streamed_usage": [last.usage.prompt_tokens, last.usage.completion_tokens],
        "text": [text.choices[0].text, text.choices[0].finish_reason],
        "text_logprobs": text.choices[0].logprobs.tokens,
        "text_streamed": "".join(piece.choices[0].text for piece in pieces),
        "n": [choice.message.content for choice in several.choices],
        "stop": [stopped.choices[0].message.content, stopped.choices[0].finish_reason],
        "no_model": failure(client, {"model": "gpt-9"}),
        "bad_value": failure(client, {"temperature": 3}),
        "too_long": failure(client, {"max_tokens": 10**9}),
        "no_key": failure(connect("sk-of-a-stranger"), {}),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
