"""The official openai client, any version of it. Its argument and what it prints: see test_clients.py."""

import json
import sys

import openai
from told import STRANGER, answers, refusals

ASKED = json.loads(sys.argv[1])
CHAT, TEXT, EMBEDDING = ASKED["chat"], ASKED["text"], ASKED["embedding"]


def connect(key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=ASKED["base"], api_key=key, max_retries=0)


def main() -> None:
    client = connect(ASKED["key"])
    ask, write = client.chat.completions.create, client.completions.create
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
        stranger=lambda: connect(STRANGER).chat.completions.create(**CHAT),
        no_model="gpt-9",
    )
    packed = client.embeddings.create(**EMBEDDING)  # these clients ask for base64 unless told otherwise
    plain = client.embeddings.create(**EMBEDDING, encoding_format="float")
    told["embedded"] = [[item.embedding for item in answer.data] for answer in (packed, plain)]
    models = [model.id for model in client.models.list()]
    print(json.dumps({"version": openai.__version__.split(".")[0], "models": models, **told, **refused}))


if __name__ == "__main__":
    main()
