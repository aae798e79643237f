"""The official openai client, any version, and its batches. Its argument and what it prints: see test_clients.py."""

import json
import sys
import time

import openai
from told import failure

ASKED = json.loads(sys.argv[1])
ENDED = ("completed", "failed", "expired", "cancelled")


def main() -> None:
    client = openai.OpenAI(base_url=ASKED["base"], api_key=ASKED["key"], max_retries=0)
    rows = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": ASKED["chat"] | changes}
        for name, changes in (("good", {}), ("bad", {"temperature": 3}))
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    sent = client.files.create(file=("rows.jsonl", content), purpose="batch")
    begun = client.batches.create(
        input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    batch = begun
    while batch.status not in ENDED:
        time.sleep(0.05)
        batch = client.batches.retrieve(begun.id)
    (answered,) = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    (refused,) = map(json.loads, client.files.content(batch.error_file_id).text.splitlines())
    choice = answered["response"]["body"]["choices"][0]
    counts = batch.request_counts
    seen = {
        "version": openai.__version__.split(".")[0],
        "file": [sent.filename, sent.bytes == len(content), sent.purpose, client.files.retrieve(sent.id) == sent],
        "batch": [batch.status, batch.metadata, counts.total, counts.completed, counts.failed],
        "answer": [answered["custom_id"], choice["message"]["content"], choice["finish_reason"]],
        "refusal": [refused["custom_id"], refused["response"]["status_code"], refused["error"]["code"]],
        "listed": [
            begun.id in [listed.id for listed in client.batches.list(limit=1)],
            {batch.output_file_id, batch.error_file_id} <= {file.id for file in client.files.list(limit=1)},
        ],
        "deleted": client.files.delete(sent.id).deleted,
        "forgotten": failure(lambda: client.files.content(sent.id)),
        "too_late": failure(lambda: client.batches.cancel(begun.id)),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
