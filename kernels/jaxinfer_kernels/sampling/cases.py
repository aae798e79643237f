"""Real shapes of sampling, listed once: tests on a GPU, lowering tests and benchmarks read the same lists."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens that one family of models has logits of."""

    models: str
    width: int


VOCABULARIES = (
    Vocabulary("Llama 2, Mistral", 32_000),
    Vocabulary("Llama 3", 128_256),
    Vocabulary("Qwen to 3B", 151_936),
    Vocabulary("Qwen from 7B", 152_064),
    Vocabulary("Gemma 3", 262_144),
)
ROWS = (1, 8, 64, 256)
INTERPRETED = (
    512,
    544,
    1_056,
    2_048,
)  # one tile, two that overlap, three that overlap, four: small enough to interpret
