"""litellm. Its argument and what it prints: see test_clients.py."""

import importlib.metadata
import json
import sys

import litellm
from told import STRANGER, answers, refusals

ASKED = json.loads(sys.argv[1])
TO = {"api_base": ASKED["base"], "api_key": ASKED["key"], "num_retries": 0}
CHAT = ASKED["chat"] | TO | {"model": "openai/" + ASKED["chat"]["model"]}
TEXT = ASKED["text"] | TO | {"model": "text-completion-openai/" + ASKED["text"]["model"]}


def main() -> None:
    litellm.suppress_debug_info = True
    ask, write = litellm.completion, litellm.text_completion
    told = answers(
        chat=ask(**CHAT, logprobs=True, top_logprobs=2),
        chunks=list(ask(**CHAT, stream=True, stream_options={"include_usage": True})),
        text=write(**TEXT, logprobs=2),
        pieces=list(write(**TEXT, stream=True)),
        several=ask(**CHAT, n=2),
        stopped=ask(**CHAT, stop=[ASKED["stop"]]),
    )
    refused = refusals(
        ask=lambda changes: ask(**CHAT | changes),
        stranger=lambda: ask(**CHAT | {"api_key": STRANGER}),
        no_model="openai/gpt-9",
    )
    embedding = ASKED["embedding"] | TO | {"model": "openai/" + ASKED["embedding"]["model"]}
    answered = [litellm.embedding(**embedding), litellm.embedding(**embedding, encoding_format="float")]
    told["embedded"] = [[item["embedding"] for item in answer.data] for answer in answered]
    where = {"api_key": ASKED["key"], "api_base": ASKED["base"]}
    models = litellm.get_valid_models(check_provider_endpoint=True, custom_llm_provider="openai", **where)
    version = importlib.metadata.version("litellm").split(".")[0]
    print(json.dumps({"version": version, "models": models, **told, **refused}))


if __name__ == "__main__":
    main()
