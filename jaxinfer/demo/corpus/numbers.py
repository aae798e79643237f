"""Sums of two numbers from 0 to 99, and counting.

2,000 of the 10,000 sums are held out, a + b together with b + a. Sums of two digits are never held out: written
thoughts are made of them.
"""

import functools
import random

from jaxinfer.demo.corpus.turn import Case, Phrasings, Turn, say
from jaxinfer.demo.corpus.words import Split, number_word

LIMIT = 100
HELDOUT_SUMS = 2_000

SUMS = Phrasings(
    train=(
        "What is {a} plus {b}?",
        "What is {a} + {b}?",
        "what's {a} + {b}?",
        "What's {a} plus {b}",
        "{a} + {b}",
        "{a}+{b}",
        "{a} + {b} =",
        "{a}+{b}=",
        "{a} + {b} = ?",
        "{a}+{b}?",
        "{a} plus {b}",
        "{a} plus {b}?",
        "Add {a} and {b}.",
        "Add {a} to {b}",
        "Please add {a} and {b}.",
        "Can you add {a} and {b}?",
        "How much is {a} plus {b}?",
        "How much is {a} + {b}?",
        "What is the sum of {a} and {b}?",
        "The sum of {a} and {b}?",
        "Compute {a} + {b}.",
        "Calculate {a} plus {b}.",
        "Tell me {a} + {b}, please.",
        "I need {a} plus {b}.",
        "Solve {a} + {b}.",
        "If I add {a} and {b}, what do I get?",
        "What do you get when you add {a} and {b}?",
        "{a} and {b} together make what?",
        "Hello! What is {a} + {b}?",
        "Quick question: {a} + {b}?",
        "Do you know what {a} plus {b} is?",
        "What does {a} + {b} equal?",
        "What does {a} plus {b} make?",
        "I have {a} and get {b} more. How many do I have?",
        "Sum: {a} + {b}",
        "work out {a} + {b} for me",
    ),
    heldout=(
        "Could you tell me what {a} plus {b} is?",
        "Please compute the sum of {a} and {b}.",
        "How much do {a} and {b} make together?",
        "Hi, can you calculate {a} + {b}?",
        "What do {a} and {b} add up to?",
        "Give me the sum of {a} and {b}.",
        "I want to add {a} and {b}.",
        "So {a} + {b} is?",
    ),
)

COUNTING_UP = Phrasings(
    train=(
        "Count from {a} to {b}.",
        "count {a} to {b}",
        "Please count from {a} to {b}.",
        "Can you count from {a} to {b}?",
        "Count up from {a} to {b}",
        "Say the numbers from {a} to {b}.",
        "List the numbers from {a} to {b}.",
        "Write the numbers {a} to {b}.",
        "numbers from {a} to {b}",
    ),
    heldout=(
        "Could you count from {a} up to {b}?",
        "Give me the numbers from {a} to {b}.",
        "I want you to count from {a} to {b}",
    ),
)

COUNTING_TO = Phrasings(
    train=("Count to {b}.", "Can you count to {b}?", "Please count up to {b}.", "count to {b} for me"),
    heldout=("Could you count up to {b}?", "I want you to count to {b}."),
)

COUNTING_DOWN = Phrasings(
    train=("Count down from {a} to {b}.", "Count backwards from {a} to {b}.", "count down {a} to {b}"),
    heldout=("Please count backwards from {a} to {b}.", "Can you count down from {a} to {b}?"),
)


@functools.cache
def heldout_sums() -> frozenset[tuple[int, int]]:
    """The 2,000 ordered pairs (a, b) that training never adds."""
    rng = random.Random("held-out sums")
    pairs = [(a, b) for a in range(LIMIT) for b in range(a, LIMIT) if b > 9]
    rng.shuffle(pairs)
    chosen: set[tuple[int, int]] = set()
    for a, b in pairs:
        if len(chosen) + len({(a, b), (b, a)}) <= HELDOUT_SUMS:
            chosen |= {(a, b), (b, a)}
    return frozenset(chosen)


def draw_sum(rng: random.Random, split: Split) -> tuple[int, int]:
    """A pair of the split, training drawing sums of two digits somewhat more often than chance would."""
    if split == "heldout":
        return rng.choice(sorted(heldout_sums()))
    limit = 10 if rng.random() < 0.06 else LIMIT
    while True:
        pair = rng.randrange(limit), rng.randrange(limit)
        if pair not in heldout_sums():
            return pair


def sums(rng: random.Random, split: Split, case: Case) -> Turn:
    """`What is 47 plus 85?` to `47 + 85 = 132.`; one in seven questions spells the numbers in words."""
    a, b = draw_sum(rng, split)
    in_words = rng.random() < 1 / 7
    shown = [number_word(number) if in_words else str(number) for number in (a, b)]
    phrasing = SUMS.pick(rng, split)
    if in_words and "+" in phrasing:
        phrasing = phrasing.replace(" + ", " plus ").replace("+", " plus ").replace("=", "").rstrip()
    user, _ = say(rng, phrasing.format(a=shown[0], b=shown[1]), case)
    return Turn("sums", user, sum_answer(a, b), sum_thought(a, b))


def sum_answer(a: int, b: int) -> str:
    return f"{a} + {b} = {a + b}."


def sum_thought(a: int, b: int) -> str:
    """The school method: ones, carry, tens. It adds single digits only."""
    ones, tens = a % 10 + b % 10, a // 10 + b // 10
    carry = ones // 10
    lines = [f"Ones: {a % 10} and {b % 10} make {ones}. Write {ones % 10}, carry {carry}."]
    lines.append(f"Tens: {a // 10} and {b // 10} and the carry make {tens + carry}.")
    return "\n".join(lines)


def counting(rng: random.Random, split: Split, case: Case) -> Turn:
    """Counts up or down between two numbers of 0 to 100."""
    low = rng.choice((1, 1, 0, rng.randrange(90)))
    high = min(low + 1 + int(rng.random() ** 2 * 60), 100)
    if rng.random() < 0.03:
        low, high = 1, 100
    if rng.random() < 0.2:
        phrasing, first, last, step = COUNTING_DOWN.pick(rng, split), high, low, -1
    elif low == 1 and high > 2 and rng.random() < 0.5:
        phrasing, first, last, step = COUNTING_TO.pick(rng, split), low, high, 1
    else:
        phrasing, first, last, step = COUNTING_UP.pick(rng, split), low, high, 1
    in_words = max(first, last) < LIMIT and rng.random() < 0.12
    shown = [number_word(number) if in_words else number for number in (first, last)]
    user, _ = say(rng, phrasing.format(a=shown[0], b=shown[1]), case)
    numbers = ", ".join(str(number) for number in range(first, last + step, step))
    return Turn("counting", user, f"{numbers}.", f"I count from {first} to {last}, one step at a time.")
