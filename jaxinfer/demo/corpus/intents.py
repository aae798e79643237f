"""What users of tools want: for each wish how a function for it may be called, what it takes, how people ask.

A function's name and the names of its parameters are drawn anew for every example, so the model has to read them from
the tools it is offered. `generic` makes up a function altogether.
"""

import dataclasses
import random
from collections.abc import Callable

from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.numbers import draw_sum
from jaxinfer.demo.corpus.turn import Phrasings
from jaxinfer.demo.corpus.words import Split, spaced

Value = str | int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """names: how it may be called.    draw(rng, split) -> its value.    options: an enum, if it has one."""

    names: tuple[str, ...]
    draw: Callable[[random.Random, Split], Value]
    about: str
    options: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Intent:
    """functions: names the function may have, the last one held out.    result(rng) -> what the tool returns.

    Phrasings name the parameters by number: {0}, {1}.
    """

    functions: tuple[str, ...]
    about: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    phrasings: Phrasings
    result: Callable[[random.Random], dict[str, Value]]
    extra: Parameter | None = None  # optional: some tools have it, and some users then say `in {}` at the end

    def pick_function(self, rng: random.Random, split: Split) -> str:
        """One of the names; in training one in four is made longer by a word of its own."""
        name = rng.choice(self.functions[:-1] if split == "train" else self.functions)
        if split == "train" and self.functions[0] not in ("add", "multiply") and rng.random() < 1 / 4:
            word = words.invent(rng)
            return rng.choice((f"{name}_{word}", f"{word}_{name}", f"{word}.{name}", f"{name}{word.capitalize()}"))
        return name


def _integer(low: int, high: int) -> Callable[[random.Random, Split], Value]:
    return lambda rng, split: rng.randint(low, high)


def _choice(options: tuple[str, ...]) -> Callable[[random.Random, Split], Value]:
    return lambda rng, split: rng.choice(options)


def _message(rng: random.Random, split: Split) -> str:
    return rng.choice(_MESSAGES[split]).format(thing=words.thing(rng, split), place=rng.choice(words.PLACES)[1])


def _title(rng: random.Random, split: Split) -> str:
    return " ".join(words.thing(rng, split).capitalize() for _ in range(rng.randint(1, 2)))


_MESSAGES: dict[Split, tuple[str, ...]] = {
    "train": (
        "I am late",
        "the {thing} is ready",
        "bring a {thing}",
        "call me back",
        "see you at the {place}",
        "happy birthday",
        "where is my {thing}",
        "I found the {thing}",
        "dinner is at {place}",
        "thank you for the {thing}",
        "we meet at the {place} tomorrow",
    ),
    "heldout": ("I lost the {thing}", "please bring the {thing}", "I am at the {place}", "see you tomorrow"),
}

_UNITS = ("celsius", "fahrenheit")
_ROOMS = spaced("kitchen bathroom bedroom hall office cellar garage")
_LANGUAGES = spaced("French German Spanish Italian Dutch Greek Polish Turkish")
_DAYS = spaced("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_CITY = Parameter(("city", "location", "place", "town"), words.city, "Name of the city")

INTENTS: tuple[Intent, ...] = (
    Intent(
        ("get_weather", "get_current_weather", "weather", "fetch_weather", "weather_report", "getWeather",
         "lookup_weather"),
        ("Get the weather of a city", "Current weather in a place", "Returns the weather",
         "Get the current weather in a given location"),
        (_CITY,),
        Phrasings(
            ("What is the weather in {0}?", "What's the weather like in {0}?", "How is the weather in {0}?",
             "Weather in {0}?",
             "weather {0}", "Tell me the weather in {0}.", "Is it raining in {0}?", "How warm is it in {0}?",
             "Is it cold in {0} today?",
             "What is the weather in {0} today?", "Please check the weather in {0}.", "Do I need a coat in {0}?",
             "Will it rain in {0}?", "What is the temperature in {0}?", "What is the weather like now in {0}?",
             "Is it windy in {0}?", "Is it hot in {0}?", "Is it snowing in {0}?", "Is it dry in {0}?",
             "Does the sun shine in {0}?", "weather for {0}", "How is the weather in {0} this morning?",
             "What is the weather in {0} tonight?",
             "Weather in {0} this week?", "How is the weather in {0} at the moment?",
             "What is the weather like in {0} these days?",
             "Give me the weather of {0}.",
             "I want to know the weather in {0}.",
             "Which weather do they have in {0}?"),
            ("How is the weather in {0} today?", "Can you check the weather in {0}?",
             "What's the weather in {0} right now?",
             "Is it sunny in {0}?"),
        ),
        lambda rng: {
            "temperature": rng.randint(-9, 39),
            "sky": rng.choice(("sunny", "cloudy", "clear", "rainy", "foggy", "windy")),
        },
        Parameter(("unit", "units", "scale"), _choice(_UNITS), "Unit of the temperature", _UNITS),
    ),
    Intent(
        ("get_date", "current_date", "today", "calendar_today", "getDate", "what_day"),
        ("Get today's date", "Tells the day", "The current date"),
        (),
        Phrasings(
            ("What day is it?", "What day is it today?", "What is the date?", "Which day is it today?",
             "What is today's date?",
             "Tell me the date.",
             "date", "What day do we have?", "Give me the date of today.", "Which date is it?", "I need the date."),
            ("Which date do we have?", "Can you tell me the date?", "What date is it today?"),
        ),
        lambda rng: {"date": f"{rng.randint(1, 28)} {rng.choice(('May', 'June', 'July'))} {rng.randint(2020, 2030)}"},
    ),
    Intent(
        ("multiply", "times", "product", "multiply_numbers", "calculator_multiply", "multiply_integers",
         "compute_product",
         "multiplication", "math_multiply", "mul"),
        ("Multiply two integers", "Product of two numbers", "Multiplies a and b"),
        (Parameter(("a", "x", "first", "left"), _integer(0, 999), "First number"),
         Parameter(("b", "y", "second", "right"), _integer(0, 999), "Second number")),
        Phrasings(
            ("What is {0} times {1}?", "Multiply {0} and {1}.", "{0} * {1}", "Compute {0} * {1}.", "{0} times {1}",
             "How much is {0} times {1}?", "What is {0} * {1}?", "Multiply {0} by {1}.",
             "What is the product of {0} and {1}?"),
            ("Please multiply {0} by {1}.", "How much is {0} * {1}?", "Calculate {0} times {1}."),
        ),
        lambda rng: {},
    ),
    Intent(
        ("get_time", "current_time", "get_local_time", "time_in_city", "clock", "what_time"),
        ("Get the local time of a city", "Local time in a place", "Tells the time"),
        (_CITY,),
        Phrasings(
            ("What time is it in {0}?", "What's the time in {0}?", "Tell me the time in {0}.", "time in {0}",
             "How late is it in {0}?",
             "Is it night in {0}?", "What is the local time in {0}?", "Please give me the time in {0}.",
             "Give me the time of {0}.", "I want to know the time in {0}.", "Which hour is it in {0}?",
             "What hour is it in {0}?", "clock of {0}", "What time is it in {0} at the moment?",
             "Which time do they have in {0} today?",
             "How late is it now in {0}?", "What time is it in {0} just now?"),
            ("What is the time in {0}?", "Can you tell me the time in {0}?", "Which time is it in {0} now?"),
        ),
        lambda rng: {"time": f"{rng.randrange(24):02}:{rng.randrange(60):02}"},
    ),
    Intent(
        ("set_timer", "start_timer", "timer", "create_timer", "new_timer"),
        ("Start a timer", "Set a timer for some minutes", "Counts down minutes"),
        (Parameter(("minutes", "duration", "minutes_to_wait"), _integer(1, 90), "How many minutes"),),
        Phrasings(
            ("Set a timer for {0} minutes.", "Start a timer of {0} minutes", "Timer for {0} minutes, please.",
             "timer {0} minutes",
             "Please time {0} minutes.", "Wake me in {0} minutes.", "I need a timer for {0} minutes.",
             "I want a timer of {0} minutes.", "a {0} minutes timer", "Make a {0} minutes timer.", "Count {0} minutes.",
             "Start counting {0} minutes.", "{0} minutes, go!", "Give me {0} minutes on the timer."),
            ("Can you set a timer for {0} minutes?", "Please start a timer for {0} minutes.",
             "I want a {0} minutes timer."),
        ),
        lambda rng: {"status": "started"},
    ),
    Intent(
        ("send_message", "send_text", "message", "text_contact", "sendMessage", "write_message"),
        ("Send a message to somebody", "Sends a text", "Write to a contact"),
        (Parameter(("to", "recipient", "name", "contact"), words.name, "Who gets it"),
         Parameter(("text", "message", "body", "content"), _message, "What to say")),
        Phrasings(
            ("Tell {0}: {1}", "Send {0} a message: {1}", "Message {0}: {1}", "Write to {0}: {1}",
             "Send a message to {0} saying {1}",
             "Text {0} that {1}", "Please send {0} this: {1}", "Let {0} know that {1}", "Tell {0} that {1}",
             "Write {0} that {1}", "New message to {0}: {1}", "Answer {0} with {1}", "I want to tell {0} that {1}",
             "To {0}: {1}", "Say to {0}: {1}", "Send {0} the text {1}", "Write a message for {0}: {1}"),
            ("Please tell {0} that {1}", "Send {0} this message: {1}", "Can you write to {0}: {1}"),
        ),
        lambda rng: {"status": "sent"},
    ),
    Intent(
        ("add", "add_numbers", "calculator_add", "sum", "add_two_numbers", "addition", "compute_sum", "sum_numbers",
         "adder", "plus_numbers", "add_integers", "math_add", "plus"),
        ("Add two numbers", "Adds a and b", "Sum of two numbers", "Add two integers", "Computes a sum", "Addition"),
        (Parameter(("a", "x", "first", "left"), _integer(0, 99), "First number"),
         Parameter(("b", "y", "second", "right"), _integer(0, 99), "Second number")),
        Phrasings(
            ("What is {0} plus {1}?", "Add {0} and {1}.", "{0} + {1}", "Compute {0} + {1}.",
             "Use the tool to add {0} and {1}.",
             "How much is {0} + {1}?", "What is {0} + {1}?", "Sum {0} and {1}.",
             "I want to add {0} and {1}.", "{0} plus {1}", "Work out {0} plus {1}.", "Add {0} to {1}."),
            ("Please add {0} and {1}.", "What is the sum of {0} and {1}?", "Calculate {0} plus {1}."),
        ),
        lambda rng: {},
    ),
    Intent(
        ("play_song", "play_music", "play", "start_song", "playTrack", "music_player"),
        ("Play a song", "Plays music by its title", "Start a song"),
        (Parameter(("title", "song", "track", "name"), _title, "Title of the song"),),
        Phrasings(
            ("Play {0}.", "Play the song {0}.", "Please play {0}", "I want to hear {0}.", "Put on {0}",
             "Start the song {0}.",
             "I want to listen to {0}.", "Let me hear {0}.", "I feel like hearing {0}.",
             "Play {0} by my favorite band.",
             "Play me {0}.", "The song {0}.", "Next song: {0}", "I wish to hear {0}."),
            ("Can you play {0}?", "Please play the song {0}.", "I would like to hear {0}."),
        ),
        lambda rng: {"status": "playing"},
    ),
    Intent(
        ("turn_on_light", "light_on", "switch_light", "lights", "set_light"),
        ("Switch a light on or off", "Controls the lights of a room", "Set the light of a room"),
        (Parameter(("state", "power", "on_or_off"), _choice(("on", "off")), "on or off", ("on", "off")),
         Parameter(("room", "where", "area"), _choice(_ROOMS), "Which room")),
        Phrasings(
            ("Turn {0} the light in the {1}.", "Switch {0} the lights in the {1}", "Light {0} in the {1}, please.",
             "Turn {0} the {1} light.",
             "Please turn {0} the light in the {1}.", "I want the light {0} in the {1}.",
             "The {1} light must be {0}.", "Put the light {0} in the {1}.", "{1} light {0}",
             "Make the light in the {1} go {0}.",
             "Switch the {1} light {0}.", "Turn the lights of the {1} {0}.", "Light {0}, {1}!"),
            ("Can you turn {0} the light in the {1}?", "Please switch {0} the {1} light.", "Lights {0} in the {1}!"),
        ),
        lambda rng: {"status": "done"},
    ),
    Intent(
        ("search", "web_search", "search_web", "find", "lookup", "search_engine"),
        ("Search the web", "Find pages about something", "Web search"),
        (Parameter(("query", "q", "text", "keywords"), words.thing, "What to look for"),),
        Phrasings(
            ("Search for {0}.", "Search the web for {0}", "Look up {0}.", "Find pages about {0}.",
             "Please search {0}", "google {0}",
             "What does the web say about {0}?",
             "Find {0}.", "I want to read about {0}.", "Anything about {0}?", "What can you find about {0}?",
             "Search something on {0}.", "Find out about {0}.", "Show me pages about {0}.",
             "Is there something about {0}?"),
            ("Can you search for {0}?", "Please look up {0}.", "Find something about {0}."),
        ),
        lambda rng: {"hits": rng.randint(1, 99)},
    ),
    Intent(
        ("order_item", "buy", "add_to_cart", "order", "purchase", "shop_order"),
        ("Order things from the shop", "Buy an item", "Put an item into the cart"),
        (Parameter(("quantity", "count", "amount"), _integer(2, 40), "How many"),
         Parameter(("item", "product", "article"), lambda rng, split: f"{words.thing(rng, split)}s", "What to buy")),
        Phrasings(
            ("Order {0} {1}.", "Buy {0} {1}", "I want to buy {0} {1}.", "Please order {0} {1}.", "Get me {0} {1}.",
             "Put {0} {1} into the cart.",
             "I need {0} {1}.", "We need {0} {1}, buy them.", "I would like {0} {1}.", "{0} {1}, please order.",
             "Shop for {0} {1}.", "Send me {0} {1}.", "Add {0} {1} to my cart.", "I take {0} {1}."),
            ("Can you order {0} {1}?", "Please buy {0} {1}.", "I need {0} {1}, order them."),
        ),
        lambda rng: {"order": rng.randint(100, 999), "status": "ok"},
    ),
    Intent(
        ("translate", "translate_text", "translator", "to_language", "get_translation"),
        ("Translate a text", "Translate into another language", "Translates words"),
        (Parameter(("text", "word", "phrase", "source"), words.thing, "What to translate"),
         Parameter(("language", "target", "target_language", "to"), _choice(_LANGUAGES), "Into which language")),
        Phrasings(
            ("Translate {0} into {1}.", "Translate {0} to {1}", "How do you say {0} in {1}?", "What is {0} in {1}?",
             "Please translate {0} to {1}.", "{0} in {1}, please.",
             "What does {0} mean in {1}?", "the {1} word for {0}", "I need {0} in {1}.", "Say {0} in {1}.",
             "What is the {1} for {0}?", "How do they say {0} in {1}?", "Give me the {1} word for {0}.",
             "Tell me the {1} word for {0}.", "{0} to {1}"),
            ("Can you translate {0} into {1}?", "What is the {1} word for {0}?", "How do I say {0} in {1}?"),
        ),
        lambda rng: {"translation": words.invent(rng)},
    ),
    Intent(
        ("create_event", "add_event", "calendar_add", "new_event", "schedule", "book_event"),
        ("Put an event into the calendar", "Create a calendar event", "Adds a meeting"),
        (Parameter(("title", "name", "event", "subject"), lambda rng, split: f"meeting with {words.name(rng, split)}",
         "What it is"),
         Parameter(("day", "date", "weekday", "when"), _choice(_DAYS), "On which day")),
        Phrasings(
            ("Add a {0} on {1}.", "Put the {0} on {1}", "Schedule a {0} for {1}.", "I have a {0} on {1}.",
             "Please plan the {0} for {1}.",
             "New event: {0}, {1}",
             "Make a {0} on {1}.", "Book a {0} for {1}.", "On {1} I have a {0}.", "Write down: {0} on {1}.",
             "There is a {0} on {1}.", "Do not forget the {0} on {1}."),
            ("Can you schedule the {0} on {1}?", "Please add a {0} on {1}.", "Plan a {0} for {1}."),
        ),
        lambda rng: {"status": "created"},
    ),
    Intent(
        ("get_user", "find_user", "user_info", "load_user", "fetch_user", "query_user"),
        ("Load a user by id", "Get a user", "User data by number"),
        (Parameter(("id", "user_id", "number", "userId"), _integer(1, 9999), "Number of the user"),),
        Phrasings(
            ("Get user {0}.", "Show me user {0}", "Who is user {0}?", "Load the user with id {0}.",
             "Find user number {0}.", "user {0}",
             "Give me user {0}.", "I want to see user {0}.", "What do we know of user {0}?", "Look up user {0}.",
             "Which user has number {0}?", "Fetch user {0}."),
            ("Can you show user {0}?", "Please load user {0}.", "Tell me about user {0}."),
        ),
        lambda rng: {"name": words.name(rng, "train"), "city": words.city(rng, "train")},
    ),
)  # fmt: skip

VERBS = spaced(
    "open close start stop check clean move copy save print load lock count scan show hide paint fix wash sell"
)


def names_in(first: str) -> frozenset[str]:
    """All names of the function whose first name is this one."""
    return frozenset(next(intent.functions for intent in INTENTS if intent.functions[0] == first))


ADDERS, MULTIPLIERS = names_in("add"), names_in("multiply")


def generic(rng: random.Random, split: Split) -> Intent:
    """A wish with an invented function: a verb and a noun make its name, and one value is to be handed over."""
    verb, noun = rng.choice(VERBS), words.thing(rng, split)
    parts = {"verb": verb, "noun": noun, "first": verb.capitalize(), "second": noun.capitalize()}
    function = rng.choice((f"{verb}_{noun}", f"{verb}{noun.capitalize()}", f"{noun}_{verb}", f"{verb}_the_{noun}"))
    draw = rng.choice((words.name, words.thing, _integer(1, 999)))
    names = ("name", "id", "target", "value", noun, "which", "label", words.invent(rng))
    return Intent(
        (function, function),
        (f"{verb.capitalize()} a {noun}", f"{verb.capitalize()}s the {noun}"),
        (Parameter(names, draw, f"Which {noun}"),),
        Phrasings(
            tuple(text.format(**parts, value="{0}") for text in _GENERIC.train),
            tuple(text.format(**parts, value="{0}") for text in _GENERIC.heldout),
        ),
        lambda rng: {"status": rng.choice(("done", "ok", "failed"))},
    )


_GENERIC = Phrasings(
    train=(
        "{first} the {noun} {value}.",
        "Please {verb} {noun} {value}",
        "{verb} {noun} {value}",
        "{first} {value}, the {noun}.",
        "I want to {verb} the {noun} {value}.",
        "{first} the {noun} called {value}.",
        "{first} this {noun}: {value}",
        "{second} {value}: {verb} it.",
        "Use the tool to {verb} {noun} {value}.",
        "Somebody must {verb} the {noun} {value}.",
    ),
    heldout=("Can you {verb} the {noun} {value}?", "Please {verb} the {noun} {value}."),
)


def draw_values(intent: Intent, rng: random.Random, split: Split) -> list[Value]:
    """A value for each parameter; numbers from 0 to 99 to be added are a pair of the split."""
    if intent.functions[0] == "add":
        return [rng.randint(100, 9999), rng.randint(0, 9999)] if rng.random() < 0.3 else list(draw_sum(rng, split))
    return [parameter.draw(rng, split) for parameter in intent.parameters]
