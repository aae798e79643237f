"""instructor, over the openai package. Its argument and what it prints: see test_structured_clients.py."""

import importlib.metadata
import json
import sys
from typing import Any

import instructor
import openai
from pydantic import BaseModel
from wanted import SENTENCE, SETTINGS, wanted

ASKED = json.loads(sys.argv[1])
MODES = {"json_schema": instructor.Mode.JSON_SCHEMA, "tools": instructor.Mode.TOOLS}


def asked_in(mode: instructor.Mode) -> list[Any]:
    with openai.OpenAI(base_url=ASKED["base"], api_key=ASKED["key"], max_retries=0) as client:
        ask = instructor.from_openai(client, mode=mode).chat.completions.create
        messages = [{"role": "user", "content": SENTENCE}]
        settings = SETTINGS | {"model": ASKED["model"], "messages": messages, "max_retries": 0}

        def one(model: type[BaseModel]) -> Any:
            return ask(response_model=model, **settings)

        return wanted(one)


def main() -> None:
    seen = {name: asked_in(mode) for name, mode in MODES.items()}
    print(json.dumps({"version": importlib.metadata.version("instructor").split(".")[0], **seen}))


if __name__ == "__main__":
    main()
