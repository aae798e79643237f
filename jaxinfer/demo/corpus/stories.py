"""Tiny stories of four to six sentences about a thing the user names, or about one of the model's own choice."""

import random
import re

from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.turn import Case, Phrasings, Turn, say, verbatim
from jaxinfer.demo.corpus.words import Split, spaced

ABOUT = Phrasings(
    train=(
        "Tell me a story about {a} {thing}.",
        "Tell me a tiny story about {a} {thing}.",
        "Tell a story about {a} {thing}",
        "Write a story about {a} {thing}.",
        "Write a short story about {a} {thing}",
        "A story about {a} {thing}, please.",
        "a story with {a} {thing}",
        "I want a story about {a} {thing}.",
        "Can you tell me a story about {a} {thing}?",
        "Please tell me a story with {a} {thing} in it.",
        "story about {a} {thing}",
        "Make up a story about {a} {thing}.",
        "Do you know a story about {a} {thing}?",
    ),
    heldout=(
        "Could you tell me a story about {a} {thing}?",
        "Please write a tiny story about {a} {thing}.",
        "a story with {a} {thing}, please",
        "I would like a story about {a} {thing}.",
    ),
)

ANY = Phrasings(
    train=(
        "Tell me a story.",
        "Tell me a short story.",
        "Write a story.",
        "Write me a tiny story",
        "a story please",
        "Can you tell a story?",
        "Another story!",
        "I want to hear a story.",
        "Tell a bedtime story.",
    ),
    heldout=("Could you tell me a story?", "Please write a short story.", "I would like a story."),
)

_OPENINGS = (
    "Once there was a {child} called {name} who had {a} {color} {thing}.",
    "{name} was a {mood} {child} who lived {where} the {place} with {a} {color} {thing}.",
    "One {day} {name} found {a} {color} {thing} {where} the {place}.",
    "Long ago, {where} the {place}, {name} made {a} {color} {thing}.",
)
_MIDDLES = (
    "Every morning {name} took the {thing} to the {place2}.",
    "The {thing} was small, but {name} loved it.",
    "Then the wind came and carried the {thing} away.",
    "The {animal} looked at the {thing} and smiled.",
    "{name} showed the {thing} to a {mood2} {animal}.",
    "It rained all day, and the {thing} got wet.",
    "{name} looked for the {thing} near the {place2}.",
    "The {animal} said: I have never seen such a fine {thing}.",
    "At night the {thing} shone like a star.",
    "{name} walked to the {place2} and sang a song.",
)
_ENDINGS = (
    "In the end they all went home and slept well.",
    "From that day on {name} and the {animal} were friends.",
    "{name} laughed and kept the {thing} for ever.",
    "And so the {thing} came home again.",
    "That night {name} dreamed of the {place2}.",
)
_CHILDREN = spaced("girl boy child baker sailor farmer painter king queen teacher")
_MOODS = spaced("happy quiet brave kind clever tired funny gentle proud shy")
_ANIMALS = spaced("fox bird cat dog mouse bear frog owl horse rabbit fish duck")
_DAYS = spaced("morning evening day night summer winter spring")


def stories(rng: random.Random, split: Split, case: Case) -> Turn:
    """A story about the thing asked for, spelt in the story as the user spelt it."""
    if rng.random() < 0.2:
        user, _ = say(rng, ANY.pick(rng, split), case)
        return Turn("stories", user, story(rng, rng.choice(words.OBJECTS["train"])), "I make up a tiny story.")
    thing = words.thing(rng, split)
    text = ABOUT.pick(rng, split).format(a=words.article(thing), thing=verbatim(thing))
    user, (thing,) = say(rng, text, case)
    return Turn("stories", user, story(rng, thing), f"I make up a tiny story with the {thing}.")


def story(rng: random.Random, thing: str) -> str:
    """Four to six sentences in which the thing, one person and one animal keep their names."""
    (where, place), (_, place2) = rng.sample(words.PLACES, 2)
    color = rng.choice(words.COLORS)
    parts = {
        "name": rng.choice(words.NAMES["train"]),
        "a": words.article(color),
        "color": color,
        "thing": thing,
        "where": where,
        "place": place,
        "place2": place2,
        "child": rng.choice(_CHILDREN),
        "animal": rng.choice(_ANIMALS),
        "mood": rng.choice(_MOODS),
        "mood2": rng.choice(_MOODS),
        "day": rng.choice(_DAYS),
    }
    middles = sorted(rng.sample(range(len(_MIDDLES)), rng.randint(2, 4)))
    sentences = [rng.choice(_OPENINGS), *(_MIDDLES[index] for index in middles), rng.choice(_ENDINGS)]
    return " ".join(sentence.format(**parts) for sentence in sentences)


def is_story(text: str, asked: str) -> bool:
    """Whether a text is one of our stories from first to last word, about the held-out thing asked for, if any."""
    first, middle, last = (_pattern(sentences) for sentences in (_OPENINGS, _MIDDLES, _ENDINGS))
    things = [word for word in re.findall(r"\w+", asked) if word.lower() in words.OBJECTS["heldout"]]
    thing = things[0] if things else r"\w+"
    pattern = f"{first}(?: {middle}){{2,4}} {last}".replace("THING", thing)
    return re.fullmatch(pattern, text) is not None


def _pattern(sentences: tuple[str, ...]) -> str:
    either = "|".join(re.escape(sentence) for sentence in sentences)
    return f"(?:{re.sub(r'\\{(\w+)\\}', lambda blank: 'THING' if blank[1] == 'thing' else r'\w+', either)})"
