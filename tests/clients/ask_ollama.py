"""The walk of test_ollama.py, with the ollama package as it comes. argv: the server's address and its key."""

import json
import sys

import ollama


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


client = ollama.Client(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"})
question = [{"role": "user", "content": "What is 7 plus 5?"}]


def refused(ask) -> int:
    try:
        ask()
    except ollama.ResponseError as error:
        return error.status_code
    return 0


last = client.chat("demo", question)
print(
    json.dumps(
        {
            "models": [model.model for model in client.list().models],
            "loaded": [model.context_length for model in client.ps().models],
            "capabilities": client.show("demo").capabilities,
            "chat": last.message.content,
            "durations": [last.total_duration > 0, last.prompt_eval_duration > 0, last.eval_count > 0],
            "streamed": "".join(p.message.content for p in client.chat("demo:latest", question, stream=True)),
            "generated": client.generate("demo", question[0]["content"]).response,
            "loads": client.generate("demo").done_reason,
            "tools": client.chat("demo", question, tools=[add]).done,
            "embedded": [
                len(client.embed("demo", ["a", "b"]).embeddings),
                len(client.embeddings("demo", "a").embedding),
            ],
            "refused": [
                refused(lambda: client.pull("demo")),
                refused(lambda: client.delete("demo")),
                refused(lambda: client.chat("nope", question)),
                refused(lambda: list(client.chat("nope", question, stream=True))),
                refused(lambda: client.chat("demo", question, options={"num_ctx": 10**7})),
            ],
        }
    )
)
