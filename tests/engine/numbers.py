"""What the fakes of the engine's tests share: a hash, and the ids that break something."""

from collections.abc import Sequence

from jaxinfer.runtime.plan import Controls

MASK = (1 << 64) - 1
VOCAB = 97
BAD = VOCAB - 1  # this token's hidden state is not finite
CURSED = VOCAB - 2  # workloads have steps fail whose upload holds this token


def mix(*numbers: int) -> int:
    """A 64-bit hash of integers."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ (number & MASK)) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & MASK
        state ^= state >> 29
    return state


def completes_a_bad_word(controls: Controls, tokens: Sequence[int]) -> set[int]:
    words = [word for word in controls.bad_words if len(word) > 1]
    return {word[-1] for word in words if [*tokens][-len(word) + 1 :] == [*word[:-1]]}
