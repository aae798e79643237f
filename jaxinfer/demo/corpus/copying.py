"""Tasks that copy what the user wrote: spelling, repeating, and turning a sentence into JSON."""

import json
import random

from jaxinfer.demo.corpus import sentences as grammar
from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.common import COMMON
from jaxinfer.demo.corpus.turn import Case, Phrasings, Turn, say, verbatim
from jaxinfer.demo.corpus.words import Split, spaced

SPELLING = Phrasings(
    train=(
        "Spell {word}.",
        "Spell the word {word}.",
        "How do you spell {word}?",
        "Please spell {word}",
        "Can you spell {word}?",
        "spell '{word}'",
        "How is {word} spelled?",
        "Spell {word} letter by letter.",
        "Spell {word} for me, please.",
        "How would you spell {word}?",
        "How should I spell {word}?",
        "I do not know how to spell {word}.",
        "Which letters are in {word}?",
        "Give me the letters of {word}.",
        'How do people spell "{word}"?',
    ),
    heldout=("Could you spell {word} for me?", "Please spell the word {word}.", "How do I spell {word}?"),
)

REPEATING = Phrasings(
    train=(
        "Repeat: {text}",
        "Repeat after me: {text}",
        "Say: {text}",
        "Please repeat: {text}",
        "Echo: {text}",
        "Say {text}",
        'Say "{text}"',
        "Say '{text}'.",
        'Repeat "{text}", please.',
        'Please say "{text}".',
    ),
    heldout=("Please say: {text}", "Please repeat after me: {text}"),
)

SENTENCES = Phrasings(
    train=(
        "{name} put {a} {color} {object} {where} the {place}.",
        "{name} left {a} {color} {object} {where} the {place}.",
        "{name} found {a} {color} {object} {where} the {place}.",
        "{name} has {a} {color} {object} {where} the {place}.",
        "{name} lost {a} {color} {object} {where} the {place} yesterday.",
        "{name} saw {a} {color} {object} {where} the {place}.",
        "{name} hid the {color} {object} {where} the {place}.",
        "{name} keeps the {color} {object} {where} the {place}.",
        "{name} dropped the {color} {object} {where} the {place} this morning.",
        "{name} sold {a} {color} {object} {where} the {place} last week.",
        "The {color} {object} {where} the {place} belongs to {name}.",
        "There is {a} {color} {object} {where} the {place}. It belongs to {name}.",
        "There was {a} {color} {object} {where} the {place}, and {name} took it.",
        "Yesterday {name} bought {a} {color} {object} {where} the {place}.",
        "Last night {name} forgot the {color} {object} {where} the {place}.",
        "I think {name} left the {color} {object} {where} the {place}.",
        "We met {name}, who had {a} {color} {object}, {where} the {place}.",
        "{name}'s {color} {object} is {where} the {place}.",
        "{name} was {where} the {place} with {a} {color} {object}.",
        "A friend called {name} is {where} the {place} with {a} {color} {object}.",
        "My friend {name} painted {a} {color} {object} {where} the {place}.",
        "In the evening {name} carried {a} {color} {object} and sat down {where} the {place}.",
        "Somebody gave {name} {a} {color} {object} {where} the {place}.",
        "Look, {name} is {where} the {place} and holds {a} {color} {object}!",
    ),
    heldout=(
        "{name} forgot {a} {color} {object} {where} the {place}.",
        "Yesterday {name} lost the {color} {object} {where} the {place}.",
        "There is {a} {color} {object} {where} the {place}, and it belongs to {name}.",
        "I saw {name} {where} the {place} with {a} {color} {object}.",
        "My friend {name} hid {a} {color} {object} {where} the {place}.",
        "The {color} {object} that {name} bought is {where} the {place}.",
    ),
)

EXTRACT_ALL = Phrasings(
    train=(
        "Extract JSON: {sentence}",
        "Extract: {sentence}",
        "Extract the facts as JSON: {sentence}",
        "Turn this into JSON: {sentence}",
        "To JSON: {sentence}",
        "JSON please: {sentence}",
        "Give me JSON for this sentence: {sentence}",
        "Write this as JSON: {sentence}",
        "Convert to JSON: {sentence}",
        "Please extract the data from this sentence: {sentence}",
        "{sentence} Extract JSON.",
        "{sentence} Turn that into JSON.",
        "{sentence} As JSON, please.",
        "Read this and answer in JSON. {sentence}",
        'Extract JSON from "{sentence}"',
    ),
    heldout=(
        "Please turn this sentence into JSON: {sentence}",
        "Extract the data as JSON: {sentence}",
        "{sentence} Give me that as JSON.",
        "Write JSON for this: {sentence}",
    ),
)

EXTRACT_SOME = Phrasings(
    train=(
        "Extract {keys} as JSON: {sentence}",
        "Extract the {keys}: {sentence}",
        "Extract the {keys} from this sentence as JSON: {sentence}",
        "Give me the {keys} as JSON: {sentence}",
        "JSON with {keys}: {sentence}",
        "Find the {keys} and answer in JSON: {sentence}",
        "{sentence} Extract the {keys} as JSON.",
        "{sentence} Give me JSON with the {keys}.",
        "Extract {keys}. {sentence}",
    ),
    heldout=(
        "Please extract the {keys} as JSON: {sentence}",
        "{sentence} Extract {keys}.",
        "Write JSON with the {keys}: {sentence}",
    ),
)

FIELDS = ("name", "object", "color", "place")


def spelling(rng: random.Random, split: Split, case: Case) -> Turn:
    """`Spell lamp.` to `l-a-m-p`, every letter as the user wrote it."""
    word = words.name(rng, split) if rng.random() < 0.3 else words.thing(rng, split)
    user, (word,) = say(rng, SPELLING.pick(rng, split).format(word=verbatim(word)), case)
    return Turn("spelling", user, "-".join(word), f"I take {word} letter by letter.")


def repeating(rng: random.Random, split: Split, case: Case) -> Turn:
    """`Repeat: the red lamp` to `the red lamp`."""
    count = rng.randint(1, 7)
    text = " ".join(_any_word(rng, split) for _ in range(count))
    text = text.capitalize() + rng.choice(".!?") if rng.random() < 0.4 else text
    user, (text,) = say(rng, REPEATING.pick(rng, split).format(text=verbatim(text)), case)
    return Turn("repeating", user, text, "I say what I was asked to say.")


def _any_word(rng: random.Random, split: Split) -> str:
    kind = rng.randrange(7)
    if kind == 0:
        return words.name(rng, split)
    if kind == 1:
        return rng.choice(words.COLORS)
    if kind == 2:
        return str(rng.randrange(1000))
    if kind == 3:
        return rng.choice(spaced("the a this is my your one hello good very little and or with we you it test"))
    if kind > 4 and split == "train":
        word = rng.choice(COMMON)
        return word.capitalize() if rng.random() < 0.3 else word
    return words.thing(rng, split)


def extraction(rng: random.Random, split: Split, case: Case) -> Turn:
    """A sentence to `{"name": ..., "object": ..., "color": ..., "place": ...}`, or to the keys asked for, in order.

    Every value is copied as the user spelt it, capitals and all.
    """
    where, place = rng.choice(words.PLACES)
    values = {
        "name": words.name(rng, split),
        "object": words.thing(rng, split),
        "color": rng.choice(words.COLORS),
        "place": place,
    }
    sentence = SENTENCES.pick(rng, split, polite=0.0)
    if split == "train" and rng.random() < 0.75:
        sentence = SENTENCES.unless_heldout(grammar.sentence(rng), sentence)
    order = sorted(FIELDS, key=lambda field: sentence.index(f"{{{field}}}"))
    marked = {field: verbatim(value) for field, value in values.items()}
    sentence = sentence.format(a=words.article(values["color"]), where=where, **marked)
    keys = FIELDS
    if rng.random() < 0.4:
        keys = tuple(rng.sample(FIELDS, rng.randint(1, 3)))
        text = EXTRACT_SOME.pick(rng, split).format(keys=_listed(rng, keys), sentence=sentence)
    else:
        text = EXTRACT_ALL.pick(rng, split).format(sentence=sentence)
    user, spelt = say(rng, text, case)
    found = dict(zip(order, spelt, strict=True))
    answer = json.dumps({key: found[key] for key in keys}, ensure_ascii=False)
    thought = "I copy the " + ", ".join(keys) + " from the sentence."
    return Turn("extraction", user, answer, thought)


def _listed(rng: random.Random, keys: tuple[str, ...]) -> str:
    if len(keys) > 1 and rng.random() < 0.7:
        return ", ".join(keys[:-1]) + f" and {keys[-1]}"
    return ", ".join(keys)
