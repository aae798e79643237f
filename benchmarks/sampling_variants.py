"""The ways of sampling that are timed, as fields of /v1/completions: one list for servers and for steps in process.

The fields are OpenAI's and vLLM's, which are ours too. Ids are below 1,500, so that the demo's vocabulary has them.
Each variant says of all that a model's generation_config.json may set what it is, and differs from `greedy` by its own
fields alone.
"""

from collections.abc import Sequence
from typing import Any

GREEDY: dict[str, Any] = {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
MIN_TOKENS = 128  # the shortest answer of the targets' shapes; a server refuses it for shorter ones

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("greedy", GREEDY),
    ("t0.7", GREEDY | {"temperature": 0.7}),
    ("t0.7-p0.95-k20", GREEDY | {"temperature": 0.7, "top_p": 0.95, "top_k": 20}),
    ("t1-p0.95", GREEDY | {"temperature": 1, "top_p": 0.95}),
    ("presence-1.5-t0.7-p0.8-k20", GREEDY | {"presence_penalty": 1.5, "temperature": 0.7, "top_p": 0.8, "top_k": 20}),
    ("repetition-1.05", GREEDY | {"repetition_penalty": 1.05}),
    ("min-tokens", GREEDY | {"min_tokens": MIN_TOKENS}),
    ("min-tokens-stop-id", GREEDY | {"min_tokens": MIN_TOKENS, "stop_token_ids": [3]}),  # an end to hold back
    ("logit-bias-10", GREEDY | {"logit_bias": {str(token_id): -5 for token_id in range(0, 1500, 150)}}),
    ("logit-bias-200", GREEDY | {"logit_bias": {str(token_id): -5 for token_id in range(0, 1400, 7)}}),
    ("allowed-1000", GREEDY | {"allowed_token_ids": list(range(200, 1200))}),
    ("bad-words-3-tokens", GREEDY | {"bad_words": ["1 2"]}),  # one word of three tokens: "1", " ", "2"
    ("logprobs-1", GREEDY | {"logprobs": 1}),
    ("logprobs-5", GREEDY | {"logprobs": 5}),
    ("logprobs-20", GREEDY | {"logprobs": 20}),
    ("stop-strings", GREEDY | {"stop": ["\n\nQ:", "<end>"]}),
    ("seed", GREEDY | {"temperature": 0.7, "seed": 1234}),
)
MIXED = "mixed"  # all of the above, in turn over the requests or rows
NAMES = (*(name for name, _ in VARIANTS), MIXED)


def fields_of(name: str) -> Sequence[dict[str, Any]]:
    """The fields of a variant's requests: request i has those at i modulo their number. Raises KeyError."""
    return tuple(fields for _, fields in VARIANTS) if name == MIXED else (dict(VARIANTS)[name],)
