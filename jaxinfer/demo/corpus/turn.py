"""One exchange between a user and the demo model, and how the user's spelling of it is varied."""

import dataclasses
import functools
import random
import re
from typing import Literal

from jaxinfer.demo.corpus.polite import politely
from jaxinfer.demo.corpus.words import Split

Case = Literal["as written", "lower", "upper", "mixed"]
CASES: tuple[Case, ...] = ("as written", "lower", "upper", "mixed")
_TRAINING_WEIGHTS = (0.5, 0.22, 0.13, 0.15)
_OPEN, _CLOSE = "\ue000", "\ue001"  # private use: they bracket what the answer copies


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """What the user says and what the model must answer, word for word.

    thought: what it writes between <think> and </think> when thinking is on.    calls: tool calls made in place of
    the answer; then `results` are what the tools return and `answer` is said after them.    tools: those offered.
    """

    task: str
    user: str
    answer: str
    thought: str
    calls: tuple[dict, ...] = ()
    results: tuple[str, ...] = ()
    tools: tuple[dict, ...] = ()


@dataclasses.dataclass(frozen=True)
class Phrasings:
    """Ways to ask for one thing; the held-out ones are never seen in training."""

    train: tuple[str, ...]
    heldout: tuple[str, ...]

    def pick(self, rng: random.Random, split: Split, polite: float = 1 / 3) -> str:
        """A phrasing of the split; a share `polite` of those for training gets other small words around it."""
        if split == "heldout":
            return rng.choice(self.heldout)
        text = rng.choice(self.train)
        return text if rng.random() > polite else self.unless_heldout(politely(rng, text), text)

    def unless_heldout(self, text: str, otherwise: str) -> str:
        """`text`, unless it says the same as a held-out phrasing but for case and signs."""
        return otherwise if essence(text) in map(essence, self.heldout) else text


@functools.cache
def essence(text: str) -> str:
    """A text without its case and signs; blanks like {a} are kept."""
    return re.sub(r"[^\w{}+]+", " ", text.lower()).strip()


def pick_case(rng: random.Random) -> Case:
    """How a training text is cased: half as written, the rest lower, upper or letter by letter at random."""
    return rng.choices(CASES, _TRAINING_WEIGHTS)[0]


def verbatim(value: str) -> str:
    """Marks a value that the answer must copy exactly as the user spelt it."""
    return f"{_OPEN}{value}{_CLOSE}"


def say(rng: random.Random, text: str, case: Case) -> tuple[str, list[str]]:
    """Recases a text; returns it without the marks of `verbatim`, and the marked values as now spelt."""
    text = _recase(rng, text, case)
    if text[-1] in ".?!" and rng.random() < 0.2:
        text = text[:-1]  # people leave the last mark out
    values = re.findall(f"{_OPEN}(.*?){_CLOSE}", text)
    return text.replace(_OPEN, "").replace(_CLOSE, ""), values


def _recase(rng: random.Random, text: str, case: Case) -> str:
    match case:
        case "as written":
            return text
        case "lower":
            return text.lower()
        case "upper":
            return text.upper()
        case "mixed":
            return "".join(rng.choice((char.lower(), char.upper())) for char in text)
