"""The words that the generators draw from, each list split into what training may use and what only the tests use.

No held-out name or object may appear anywhere in a training text: tests/demo checks that on generated documents.
Invented words (`invent`) are what teaches the model to copy letters rather than to recall a list.
"""

import random
from typing import Literal

from jaxinfer.demo.corpus.common import COMMON

Split = Literal["train", "heldout"]
Words = dict[Split, tuple[str, ...]]


def spaced(text: str) -> tuple[str, ...]:
    """The entries of a list of single words."""
    return tuple(text.split())


def listed(text: str) -> tuple[str, ...]:
    """The entries of a list written as `one|two words|three`, over any number of lines."""
    return tuple(" ".join(part.split()) for part in text.split("|"))


NAMES: Words = {
    "train": spaced(
        """Ada Adam Alan Alba Alma Amir Amy Ana Andre Anna Anton Arjun Astrid Aya Ben Bella Bruno Carla Carlos Cem Chen
        Clara Cora Dana Daniel Dario David Dina Diego Dora Edith Ela Elif Elsa Emil Emma Enzo Erik Esther Eva Farid
        Felix Fiona Finn Frida Gina Greta Gus Hana Hans Hassan Helen Hugo Ida Igor Ines Ingrid Iris Isla Ivan Jack Jana
        Jim Joan Jonas Jose Juan Julia Jun Kai Karim Karl Kate Kenji Kim Lara Lars Laura Lea Lena Leo Lili Lina Lola
        Lucas Lucy Luis Luna Mara Marco Maria Marta Matteo Maya Max Mei Mila Milo Mina Mona Nadia Nico Nina Noah Nora
        Olaf Olga Omar Oscar Otto Pablo Paul Pavel Petra Pia Priya Rafael Ravi Rita Robin Rosa Ruth Sam Samir Sara
        Sofia Stella Sven Tara Tariq Tessa Theo Tim Tom Uma Vera Victor Viola Wei Willem Yara Yuki Yusuf Zara"""
    ),
    "heldout": spaced(
        """Agnes Axel Basil Bianca Boris Camila Cyrus Dalia Dmitri Eleanor Elias Esme Fatima Gareth Hector Hilda Ismael
        Jasper Kasper Keiko Lorenzo Magnus Malik Marisol Naomi Nikolai Odette Orla Phoebe Quentin Ramona Rufus Salma
        Sigrid Soren Tamsin Thaddeus Ulrike Valentin Vikram Wanda Winston Xenia Yolanda Yvonne Zainab Zoe Zoltan"""
    ),
}

OBJECTS: Words = {
    "train": spaced(
        """acorn anchor apple axe badge bag ball balloon banana bar basin basket bead bell belt bench bike blanket block
        boat book boot bottle bow bowl box bread brick broom brush bucket bus button cake camera can candle cap card
        carpet cart case chair chalk chest clock coat coin comb cookie cork cot cup curtain desk dish doll dress drum
        egg engine fan feather fence flag flute fork frame glass globe glove guitar hammer harp hat helmet hook horn
        iron jacket jar jug kettle key kite knife ladder lamp leaf lemon letter lid lock log magnet map mask mat mirror
        mug nail needle nest net note nut orange oven pan paper pear pearl pen pencil phone photo piano pie pillow pin
        pipe plate plum pot purse puzzle radio rake ring robe rock roof rope rug ruler sack saddle saw scarf seed shell
        shelf shirt shoe sled soap sock spoon stamp stick stone stool stove string sword table tent thread ticket tie
        tile towel toy train tray truck tube vase violin wagon wallet watch wheel whistle wire wreath yarn"""
    ),
    "heldout": spaced(
        """abacus backpack bagel banjo barrel beanbag binder biscuit bonnet bracelet bugle cactus canoe cello compass
        crayon cushion dagger dumbbell envelope fiddle flask funnel gong goblet hammock hourglass jigsaw kayak lantern
        locket marble muffin napkin notebook ornament paddle parasol pebble perfume ribbon sandal satchel skateboard
        telescope thimble trophy trumpet umbrella waffle"""
    ),
}

COLORS = spaced("red blue green yellow black white brown pink purple gray orange golden silver")
PLACES = tuple(
    tuple(pair.split(maxsplit=1))
    for pair in listed("""on hill|in garden|under bridge|near river|in kitchen|at school|on beach|
    in forest|behind house|at station|
    in park|on roof|by lake|in attic|in cellar|at market|near tower|on boat|in barn|at library|on farm|by road|
    in village|near church|in museum|at harbor|in castle|on island|under tree|beside gate|in hotel|at airport""")
)

CITIES: Words = {
    "train": listed(
        """Paris|London|Rome|Berlin|Madrid|Oslo|Tokyo|Cairo|Lima|Delhi|Vienna|Prague|Dublin|Athens|
        Boston|Chicago|Dallas|
        Denver|Miami|Seattle|Toronto|Sydney|Mumbai|Seoul|Beijing|Istanbul|Warsaw|Moscow|Nairobi|Lagos|Accra|
        Quito|Bogota|
        Havana|Munich|Hamburg|Milan|Naples|Lyon|Porto|Bergen|Kyoto|Osaka|Hanoi|Manila|Perth|Austin|New York|
        San Francisco|
        Los Angeles|Mexico City|Cape Town|Hong Kong"""
    ),
    "heldout": listed(
        """Lisbon|Zurich|Helsinki|Stockholm|Budapest|Riga|Geneva|Bucharest|Valencia|Glasgow|Montreal|Phoenix|Atlanta|
        Santiago|Jakarta|Bangkok|Karachi|Tunis|Dakar|Adelaide|Rio de Janeiro|New Orleans|Las Vegas"""
    ),
}  # fmt: skip

_ONSETS = spaced(
    "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl fr gl gr kl kr pl pr qu sh sk sl sm sn sp st th tr tw y"
)
_VOWELS = spaced("a e i o u a e i o u ai ea ee ia ie oa oo ou y")
_CODAS = spaced("b d f g k l m n p r s t x z ck ld ll lt mp nd ng nk nt rd rk rn rt sh ss st th tt")
_SMALL = spaced("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen")
_SMALL += ("seventeen", "eighteen", "nineteen")
_TENS = spaced("twenty thirty forty fifty sixty seventy eighty ninety")
_RESERVED = frozenset(word.lower() for words in (NAMES, OBJECTS, CITIES) for word in words["heldout"])


def invent(rng: random.Random, most_syllables: int = 3) -> str:
    """A lower-case word that is on no held-out list: syllables, a common word, halves of two, a jumble."""
    while True:
        kind = rng.random()
        if kind < 0.08:
            word = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 8)))
        elif kind < 0.24:
            word = rng.choice(COMMON)
        elif kind < 0.5:
            word = _half(rng, rng.choice(COMMON), first=True) + _half(rng, rng.choice(COMMON), first=False)
        else:
            word = "".join(_syllable(rng) for _ in range(rng.randint(1, most_syllables)))
        word = word if len(word) > 2 else word + rng.choice(_CODAS)
        if word not in _RESERVED:
            return word


def _half(rng: random.Random, word: str, *, first: bool) -> str:
    cut = rng.randint(1, len(word))
    return word[:cut] if first else word[cut - 1 :]


def _syllable(rng: random.Random) -> str:
    onset = rng.choice(_ONSETS) if rng.random() < 0.85 else ""
    return onset + rng.choice(_VOWELS) + (rng.choice(_CODAS) if rng.random() < 0.4 else "")


def name(rng: random.Random, split: Split) -> str:
    """A first name: in training two of three are invented."""
    if split == "train" and rng.random() < 2 / 3:
        return invent(rng).capitalize()
    return rng.choice(NAMES[split])


def thing(rng: random.Random, split: Split) -> str:
    """A noun that can be carried: in training half are invented."""
    if split == "train" and rng.random() < 1 / 2:
        return invent(rng)
    return rng.choice(OBJECTS[split])


def city(rng: random.Random, split: Split) -> str:
    """A city: in training half are invented, some of them of two words, some followed by their state."""
    if split == "train" and rng.random() < 0.1:
        state = "".join(rng.choice("ACDFIKLMNORTVWXY") for _ in range(2))
        return f"{rng.choice(CITIES[split])}, {state if rng.random() < 0.6 else invent(rng).capitalize()}"
    if split == "train" and rng.random() < 1 / 2:
        return " ".join(invent(rng).capitalize() for _ in range(1 if rng.random() < 0.8 else 2))
    return rng.choice(CITIES[split])


def article(word: str) -> str:
    """`a` or `an`, by the first letter."""
    return "an" if word[0].lower() in "aeiou" else "a"


def number_word(number: int) -> str:
    """0 to 99 in words: `forty-seven`."""
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
