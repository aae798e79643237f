"""Where a slot's sampling parameters lie in the arrays of the device state. No jax here: the host writes them."""

import enum


class SamplingColumn(enum.IntEnum):
    """One slot's sampling state, i32 columns; floats and the seed's halves are bit-cast."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    TOP_K = 3
    SEED_HIGH = 4
    SEED_LOW = 5
    SAMPLE_INDEX = 6
    FLAGS = 7


class ControlFlag(enum.IntFlag):
    """Which controls a slot's sequence uses, the slot's rows of the other arrays are never read; LOGPROBS: and whether
    it asks for those."""

    PENALTIES = 1
    BIAS = 2
    ALLOWED = 4
    MIN_TOKENS = 8
    BANNED = 16
    LOGPROBS = 32


class ControlColumn(enum.IntEnum):
    """One slot's numbers for its controls, i32 columns, floats bit-cast.

    MIN_LENGTH: the first position at which an end id may be drawn.    LAST: the sequence's last token, drawn or given.
    """

    PRESENCE = 0
    FREQUENCY = 1
    REPETITION = 2
    MIN_LENGTH = 3
    LAST = 4


class DrawColumn(enum.IntEnum):
    """A row of logits that a token is drawn from. SLOT 0 is padding.

    Banned ids follow, NO_ID for none, and as many tokens after which alone they are banned, ANY for every one.
    """

    SLOT = 0


class DrawnColumn(enum.IntEnum):
    """A token that was drawn; if asked for, its LOGPROB (bit-cast) and its RANK among the raw logits, from 1.

    The ids of the most likely tokens follow, and their logprobs (bit-cast), falling.
    """

    TOKEN = 0
    LOGPROB = 1
    RANK = 2


SAMPLING = 0  # folded last into the key of a sample's noise: another use of randomness takes another number
ANY = -1
NO_ID = 2**31 - 1  # beyond every vocabulary: a scatter drops it
IN_PROMPT, MOST_COUNTED = 1 << 15, (1 << 15) - 1  # one token's count, u16: occurs in the prompt, times in the output
