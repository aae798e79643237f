"""Sentences that say who has what, in which color and where, put together by a small grammar for training.

The held-out sentences of copying.py are never produced: `Phrasings` sees to that.
"""

import random

from jaxinfer.demo.corpus.words import spaced

_PEOPLE = (
    "{name}", "{name}", "{name}", "{name}", "my friend {name}", "our neighbor {name}", "a man called {name}",
    "a girl named {name}",
    "little {name}", "old {name}", "my sister {name}", "the teacher, {name},", "a child called {name}",
    "Mister {name}", "Captain {name}",
    "somebody called {name}", "young {name}", "my uncle {name}", "the famous {name}",
)  # fmt: skip
_THINGS = (
    "{a} {color} {object}", "{a} {color} {object}", "{a} {color} {object}", "the {color} {object}",
    "the {color} {object}",
    "his {color} {object}", "her {color} {object}", "a big {color} {object}", "my {color} {object}",
    "this {color} {object}",
    "a new {color} {object}", "one {color} {object}", "an old {color} {object}", "that small {color} {object}",
    "their {color} {object}",
)  # fmt: skip
_PLACES = (
    "{where} the {place}", "{where} the {place}", "{where} the {place}", "{where} the old {place}",
    "{where} our {place}",
    "{where} a {place}", "somewhere {where} the {place}", "right {where} the {place}", "{where} the big {place}",
    "{where} this {place}",
)  # fmt: skip
_TIMES = (
    "yesterday", "today", "this morning", "last week", "on Monday", "in the evening", "at noon", "two days ago",
    "long ago",
    "last night", "once", "in May", "on Sunday", "again", "every day", "after lunch", "this year", "before dinner",
    "now",
)  # fmt: skip
_DID = spaced(
    """put left found lost saw hid dropped sold bought forgot took brought made wanted painted cleaned carried held
    stole
    broke repaired needed noticed placed washed kept moved showed liked got drew missed met used"""
)
_DOES = spaced("has keeps wants likes owns sells hides needs uses carries holds cleans sees finds paints shows")
_OTHERS = (
    "I",
    "we",
    "they",
    "you",
    "somebody",
    "the police",
    "my mother",
    "his brother",
    "everybody",
    "a neighbor",
    "she",
    "he",
)
_SHAPES = (
    "{who} {verb} {what} {there}.",
    "{who} {verb} {what} {there}.",
    "{who} {verb} {what} {there} {when}.",
    "{when}, {who} {verb} {what} {there}.",
    "{when} {who} {verb} {what} {there}.",
    "{there}, {who} {verb} {what}.",
    "{there} {who} {verb} {what} {when}.",
    "The {color} {object} that {who} {verb} {lies} {there}.",
    "The {color} {object} which {who} {verb} {when} {lies} {there}.",
    "The {color} {object} {who} {verb} {lies} {there}.",
    "{what} that {who} {verb} {when} {lies} {there}.",
    "The {color} {object} of {who} {lies} {there}.",
    "{what} {lies} {there}, and {who} {verb} it.",
    "{what} {lies} {there} and belongs to {who}.",
    "There {is_} {what} {there}, and {who} {verb} it.",
    "There {is_} {what} {there}, which belongs to {who}.",
    "There {is_} {what} {there}, and it is for {who}.",
    "There {is_} {what} {there}, and it came from {who}.",
    "There {is_} {what} {there}. This belongs to {who}.",
    "There {is_} {what} {there} and it was made by {who}.",
    "There {is_} {what} {there}. {who} {verb} it.",
    "{other} saw {who} {there} with {what}.",
    "{other} met {who} {there} with {what} {when}.",
    "{other} saw {who} {there}, and {other} saw {what} too.",
    "{other} heard that {who} {verb} {what} {there}.",
    "{other} think that {who} {verb} {what} {there}.",
    "{other} visited {who} {there} and took {what}.",
    "{other} gave {who} {what} {there}.",
    "{other} bought {what} for {who} {there}.",
    "{other} found {what} {there}, and {other} gave it to {who}.",
    "{what} was given to {who} {there}.",
    "{what} was found by {who} {there} {when}.",
    "{who} is {there} and {does} {what}.",
    "{who} was {there} with {what}.",
    "{who} sat {there} and {verb} {what}.",
    "{who} with {what} waits {there}.",
    "{who} went to the {place} with {what}.",
    "{who} came from the {place} and {verb} {what}.",
    "Did {who} leave {what} {there}?",
    "Has {who} lost {what} {there}?",
    "Who gave {who} {what} {there}?",
    "{what}, {who}, {there}.",
    "It was {who} who {verb} {what} {there}.",
    "{who} said: I {verb} {what} {there}.",
    "Look {there}: {who} {does} {what}!",
    "With {what} {who} stood {there}.",
)


def sentence(rng: random.Random) -> str:
    """A sentence with the blanks {name}, {a}, {color}, {object}, {where} and {place}, each of the four facts once."""
    while True:
        parts = {
            "who": rng.choice(_PEOPLE),
            "what": rng.choice(_THINGS),
            "there": rng.choice(_PLACES),
            "when": rng.choice(_TIMES),
            "verb": rng.choice(_DID if rng.random() < 0.7 else _DOES),
            "does": rng.choice(_DOES),
            "lies": rng.choice(("is", "was", "lies", "stands", "stays", "is still", "was seen", "is kept")),
            "is_": rng.choice(("is", "was", "stands", "lies")),
            "other": rng.choice(_OTHERS),
        }
        text = rng.choice(_SHAPES)
        for part, value in parts.items():
            text = text.replace(f"{{{part}}}", value)
        if all(text.count(f"{{{fact}}}") == 1 for fact in ("name", "object", "color", "place")):
            return text if text[0] == "{" else text[0].upper() + text[1:]
