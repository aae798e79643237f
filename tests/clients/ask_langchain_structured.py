"""langchain-openai's structured output. Its argument and what it prints: see test_structured_clients.py."""

import importlib.metadata
import json
import sys
from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from wanted import SENTENCE, SETTINGS, wanted

ASKED = json.loads(sys.argv[1])
CLIENT = ChatOpenAI(base_url=ASKED["base"], api_key=ASKED["key"], model=ASKED["model"], max_retries=0, **SETTINGS)


def asked_by(method: str) -> list[Any]:
    def one(model: type[BaseModel]) -> Any:
        return CLIENT.with_structured_output(model, method=method).invoke(SENTENCE)

    return wanted(one)


def main() -> None:
    seen = {method: asked_by(method) for method in ("json_schema", "function_calling")}
    print(json.dumps({"version": importlib.metadata.version("langchain-openai").split(".")[0], **seen}))


if __name__ == "__main__":
    main()
