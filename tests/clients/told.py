"""What the clients in Python have in common: how they tell of answers in OpenAI's shape, and of refusals."""

from collections.abc import Callable, Sequence
from typing import Any

import openai

STRANGER = "sk-of-a-stranger"


def answers(
    chat: Any, chunks: Sequence[Any], text: Any, pieces: Sequence[Any], several: Any, stopped: Any
) -> dict[str, Any]:
    """Of a chat with logprobs, the chunks of a streamed one, a completion with logprobs, the pieces of a streamed one,
    a chat of n choices and one with a stop string.
    """
    *spoken, last = chunks
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in spoken)
    return {
        "chat": _end_of(chat),
        "usage": _usage_of(chat),
        "logprobs": [[entry.token, len(entry.top_logprobs)] for entry in chat.choices[0].logprobs.content],
        "streamed": [streamed, spoken[-1].choices[0].finish_reason],
        "streamed_usage": _usage_of(last),
        "text": [text.choices[0].text, text.choices[0].finish_reason],
        "text_logprobs": text.choices[0].logprobs.tokens,
        "text_streamed": "".join(piece.choices[0].text or "" for piece in pieces),
        "n": [choice.message.content for choice in several.choices],
        "stop": _end_of(stopped),
    }


def refusals(ask: Callable[[dict[str, Any]], Any], stranger: Callable[[], Any], no_model: str) -> dict[str, list[Any]]:
    """ask: a chat with some fields changed.    stranger: asks with a key of nobody's."""
    return {
        "no_model": failure(lambda: ask({"model": no_model})),
        "bad_value": failure(lambda: ask({"temperature": 3})),
        "too_long": failure(lambda: ask({"max_tokens": 10**9})),
        "no_key": failure(stranger),
    }


def failure(ask: Callable[[], Any]) -> list[Any]:
    """What the client raised. Those of litellm and langchain are all of this kind."""
    try:
        ask()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param]
    return []


def _end_of(chat: Any) -> list[Any]:
    return [chat.choices[0].message.content, chat.choices[0].finish_reason]


def _usage_of(answer: Any) -> list[int]:
    return [answer.usage.prompt_tokens, answer.usage.completion_tokens]
