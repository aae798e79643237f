"""The official openai client's `responses`, any version that has them. Its argument and what it prints: see
test_clients.py.
"""

import itertools
import json
import sys
from typing import Any

import openai
from told import failure

ASKED = json.loads(sys.argv[1])
BODY = ASKED["response"]


def end_of(response: Any) -> list[Any]:
    reason = response.incomplete_details and response.incomplete_details.reason
    return [response.output_text, response.status, reason]


def main() -> None:
    client = openai.OpenAI(base_url=ASKED["base"], api_key=ASKED["key"], max_retries=0)
    responses = client.responses
    whole = responses.create(**BODY, metadata={"a": "b"})
    events = list(responses.create(**BODY, stream=True))
    with responses.stream(**BODY) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    after = responses.create(**BODY | {"input": ASKED["next"]}, previous_response_id=whole.id)
    kept = responses.retrieve(whole.id)
    responses.delete(whole.id)
    seen = {
        "version": openai.__version__.split(".")[0],
        "answer": end_of(whole),
        "usage": [whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens],
        "streamed": "".join(event.delta for event in events if event.type == "response.output_text.delta"),
        "events": [kind for kind, _ in itertools.groupby(event.type for event in events)],
        "last": end_of(events[-1].response),
        "accumulated": [text, *end_of(final)],
        "after": end_of(after),
        "kept": [*end_of(kept), kept.metadata],
        "forgotten": failure(lambda: responses.retrieve(whole.id)),
        "bad_value": failure(lambda: responses.create(**BODY | {"temperature": 3})),
        "too_long": failure(lambda: responses.create(**BODY | {"max_output_tokens": 10**9})),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
