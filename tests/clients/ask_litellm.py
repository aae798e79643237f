"""litellm. Its argument and what it prints: see test_clients.py."""

import importlib.metadata
import json
import sys
from typing import Any

import litellm
import openai

ASKED = json.loads(sys.argv[1])
TO = {"api_base": ASKED["base"], "api_key": ASKED["key"], "num_retries": 0}
CHAT = ASKED["chat"] | TO | {"model": "openai/" + ASKED["chat"]["model"]}
TEXT = ASKED["text"] | TO | {"model": "text-completion-openai/" + ASKED["text"]["model"]}


def failure(changes: dict[str, Any]) -> list[Any]:
    try:
        litellm.completion(**CHAT | changes)
    except openai.APIStatusError as error:  # litellm's own are all of this kind
        return [type(error).__name__, error.status_code, error.code, error.param]
    return []


def main() -> None:
    litellm.suppress_debug_info = True
    chat = litellm.completion(**CHAT, logprobs=True, top_logprobs=2)
    *chunks, last = litellm.completion(**CHAT, stream=True, stream_options={"include_usage": True})
    text = litellm.text_completion(**TEXT, logprobs=2)
    pieces = list(litellm.text_completion(**TEXT, stream=True))
    several = litellm.completion(**CHAT, n=2)
    stopped = litellm.completion(**CHAT, stop=[ASKED["stop"]])
    where = {"api_key": ASKED["key"], "api_base": ASKED["base"]}
    seen = {
        "version": importlib.metadata.version("litellm").split(".")[0],
        "models": litellm.get_valid_models(check_provider_endpoint=True, custom_llm_provider="openai", **where),
        "chat": [chat.choices[0].message.content, chat.choices[0].finish_reason],
        "usage": [chat.usage.prompt_tokens, chat.usage.completion_tokens],
        "logprobs": [[entry.token, len(entry.top_logprobs)] for entry in chat.choices[0].logprobs.content],
        "streamed": [
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
            chunks[-1].choices[0].finish_reason,
        ],
        "streamed_usage": [last.usage.prompt_tokens, last.usage.completion_tokens],
        "text": [text.choices[0].text, text.choices[0].finish_reason],
        "text_logprobs": text.choices[0].logprobs.tokens,
        "text_streamed": "".join(piece.choices[0].text or "" for piece in pieces),
        "n": [choice.message.content for choice in several.choices],
        "stop": [stopped.choices[0].message.content, stopped.choices[0].finish_reason],
        "no_model": failure({"model": "openai/gpt-9"}),
        "bad_value": failure({"temperature": 3}),
        "too_long": failure({"max_tokens": 10**9}),
        "no_key": failure({"api_key": "sk-of-a-stranger"}),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
