"""langchain-openai. Its argument and what it prints: see test_clients.py."""

import importlib.metadata
import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from told import STRANGER, refusals

ASKED = json.loads(sys.argv[1])
TO = {"base_url": ASKED["base"], "api_key": ASKED["key"], "max_retries": 0}
SETTINGS = {name: value for name, value in ASKED["chat"].items() if name != "messages"} | TO
QUESTION = ASKED["chat"]["messages"][0]["content"]


def ask_with(changes: dict[str, Any]) -> Any:
    return ChatOpenAI(**SETTINGS | changes).invoke(QUESTION)


def usage_of(message: Any) -> list[int]:
    return [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]]


def main() -> None:
    client = ChatOpenAI(**SETTINGS)
    chat = client.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    streamed, *chunks = client.stream(QUESTION, stream_usage=True)
    for chunk in chunks:
        streamed += chunk
    (text,) = OpenAI(**SETTINGS, logprobs=2).generate([ASKED["text"]["prompt"]]).generations[0]
    (several,) = ChatOpenAI(**SETTINGS, n=2).generate([[HumanMessage(QUESTION)]]).generations
    stopped = client.invoke(QUESTION, stop=[ASKED["stop"]])
    found = chat.response_metadata["logprobs"]["content"]
    embedder = OpenAIEmbeddings(model=ASKED["embedding"]["model"], check_embedding_ctx_length=False, **TO)
    packed = embedder.embed_documents(ASKED["embedding"]["input"])
    told = [embedder.embed_query(text) for text in ASKED["embedding"]["input"]]
    seen = {
        "version": importlib.metadata.version("langchain-openai").split(".")[0],
        "models": [model.id for model in client.root_client.models.list()],
        "chat": [chat.content, chat.response_metadata["finish_reason"]],
        "usage": usage_of(chat),
        "logprobs": [[entry["token"], len(entry["top_logprobs"])] for entry in found],
        "streamed": [streamed.content, streamed.response_metadata["finish_reason"]],
        "streamed_usage": usage_of(streamed),
        "text": [text.text, text.generation_info["finish_reason"]],
        "text_logprobs": text.generation_info["logprobs"]["tokens"],
        "text_streamed": "".join(OpenAI(**SETTINGS).stream(ASKED["text"]["prompt"])),
        "n": [generation.text for generation in several],
        "stop": [stopped.content, stopped.response_metadata["finish_reason"]],
        "embedded": [packed, told],
        **refusals(ask_with, lambda: ask_with({"api_key": STRANGER}), "gpt-9"),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
