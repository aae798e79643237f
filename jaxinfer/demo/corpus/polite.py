"""Small words around a request: greetings before it, thanks after it, `would you` around an order."""

import random

from jaxinfer.demo.corpus.words import spaced

_BEFORE = (
    "Hello, {}", "Hi, {}", "Hey, {}", "Ok, {}", "So, {}", "And {}", "Now {}", "Next: {}", "Then {}", "Good day, {}",
    "Dear model, {}",
    "Well, {}", "One more: {}", "Hi! {}", "Hello! {}", "Hey you, {}", "Quick: {}", "jaxinfer, {}", "Sorry, {}",
    "Oh, {}",
    "I have a question: {}", "Another question: {}", "Tell me, {}", "My question: {}", "Excuse me, {}",
)  # fmt: skip
_AFTER = (
    "please", "now", "right now", "today", "for me", "thanks", "thank you", "again", "please, thank you", "then",
    "quickly", "for us",
    "once more", "if you can", "at once", "my friend", "will you",
)  # fmt: skip
_AROUND = (
    "Can you {}?", "Can you {}?", "Can you {}?", "Please {}.", "Please {}.", "Please {}.", "Could you {}?",
    "Could you {}?", "Would you {}?", "Will you {}?", "I want you to {}.", "I would like you to {}.",
    "Please {}.",
    "Can you please {}?", "Could you please {}?", "Would you kindly {}?", "You should {}.", "I need you to {}.",
    "Go and {}.",
    "Try to {}.", "Can you try to {}?", "Are you able to {}?", "Do you want to {}?", "It is time to {}.", "Let us {}.",
)  # fmt: skip
_ORDERS = frozenset(
    spaced(
        """add answer buy calculate call check clean close compute convert copy count create describe echo explain
        extract find fix get give hide introduce list load lock look make message move open order paint plan play
        print put read repeat save say scan schedule search sell send set show solve spell start stop sum switch
        tell text time translate turn wash write clean draw teach name recommend book remind cook sing sort help
        define multiply divide subtract compare bring take throw"""
    )
)


def politely(rng: random.Random, text: str) -> str:
    """The same request with other small words around it; the text may hold blanks like {a}."""
    kind = rng.random()
    if kind < 0.5:
        order = text.removeprefix("Please ").removeprefix("please ")
        verb, _, rest = order.partition(" ")
        if verb.lower() in _ORDERS and rest:
            around = rng.choice(_AROUND)
            ends_open = text.endswith("}")  # what the user dictates ends the text: nothing may follow it
            body = f"{verb[0].lower()}{verb[1:]} {rest.rstrip('.?!')}"
            return around.format("\0").rstrip("." if not ends_open else ".?").replace("\0", body)
    if kind < 0.75 and text[-1] != "}":
        end = text[-1] if text[-1] in ".?!" else ""
        comma = rng.choice(("", ","))
        return f"{text.rstrip('.?!')}{comma} {rng.choice(_AFTER)}{end}"
    return rng.choice(_BEFORE).format("\0").replace("\0", text)
