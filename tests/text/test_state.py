"""Stop strings: the same text and count however tokens fall, the least held back, nothing leaked or lost (A38)."""

import itertools
import random

import pytest

from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.state import TextState
from tests.support.attempts import processor_s
from tests.text.samples import tokenizer

STOPS = ("</s>", "STOP", "\n\nHuman:", "aab", "日本語", "👩‍👩‍👧", "END.", "<|im_end|>", "\n", "}}")


def cut_up(text: str, rng: random.Random) -> list[int]:
    """Token ids of `text` in random pieces, down to single bytes of a character."""
    encode, ids = tokenizer("byte-level").encode, []
    while text:
        size = rng.choice((1, 1, 2, 3, 8))
        ids += encode(text[:size], plain=True)
        text = text[size:]
    return ids


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str | None, int]:
    """By brute force: the text before the stop string that is complete first, it, and where it ends."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest, end
    return text, None, len(text)


def open_end(text: str, stops: tuple[str, ...]) -> int:
    """By brute force: how much of the text's end begins a stop string."""
    return max(n for stop in stops for n in range(len(stop)) if n <= len(text) and text.endswith(stop[:n]))


def a_case(seed: int) -> tuple[str, tuple[str, ...], list[int]]:
    rng = random.Random(seed)
    stops = tuple(rng.sample(STOPS, rng.randrange(1, 5)))
    broken = [stop[: rng.randrange(1, len(stop) + 1)] for stop in rng.choices(stops, k=3)]
    words = ["the ", "fox 日", "本 ", " 👩‍👩‍👦 ", "aaa", "\r", *broken, *broken]
    rng.shuffle(words)
    text = "".join([*words, rng.choice(stops), rng.choice(("", " tail", stops[0]))])
    return text, stops, cut_up(text, rng)


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("seed", range(200))
def test_a_stop_string_is_found_however_tokens_split_it(seed: int, include_stop: bool) -> None:
    text, stops, ids = a_case(seed)
    text_tokenizer = tokenizer("byte-level")
    want, stop, end = first_stop(text, stops)
    assert stop is not None
    decisive = next(n for n in range(len(ids) + 1) if len(text_tokenizer.decode(ids[:n]).rstrip("\ufffd")) >= end)
    want += stop if include_stop else ""

    state = TextState(Detokenizer(text_tokenizer), stop=stops, include_stop=include_stop)
    joined, count = "", 0
    for n, token_id in enumerate(ids, 1):
        delta = state.feed([token_id])
        joined, count = joined + delta.text, count + delta.num_tokens
        assert want.startswith(joined), "something was given out that is not in the answer"
        if delta.stop is not None:
            break
        known = text_tokenizer.decode(ids[:n]).rstrip("\ufffd")
        held = len(known) - len(joined)
        assert held == (0 if include_stop else open_end(known, stops)), "held back more or less than needed"
        assert held < max(map(len, stops))
    assert (joined, delta.stop, count) == (want, stop, decisive)

    whole = TextState(Detokenizer(text_tokenizer), stop=stops, include_stop=include_stop).feed(ids)
    assert (whole.text, whole.stop, whole.num_tokens) == (want, stop, decisive)
    assert state.feed(ids).num_tokens == 0
    assert state.finish() == ""


@pytest.mark.parametrize("stop", ["STOP", "aabaa", "日本語"])
def test_every_split_of_a_stop_string_is_found(stop: str) -> None:
    encode = tokenizer("byte-level").encode
    for cuts in itertools.product((False, True), repeat=len(stop) - 1):
        pieces, last = [], 0
        for i, cut in enumerate([*cuts, True], 1):
            if cut:
                pieces.append(stop[last:i])
                last = i
        ids = [token_id for piece in ["x", *pieces, "y"] for token_id in encode(piece)]
        state = TextState(Detokenizer(tokenizer("byte-level")), stop=(stop,))
        deltas = [state.feed([token_id]) for token_id in ids]
        assert "".join(delta.text for delta in deltas) == "x"
        assert sum(delta.num_tokens for delta in deltas) == len(ids) - len(encode("y"))


def test_what_is_held_back_is_given_out_at_the_end() -> None:
    state = TextState(Detokenizer(tokenizer("byte-level")), stop=("STOP", "\n\nHuman:"))
    ids = tokenizer("byte-level").encode("one\n\nHum")
    assert "".join(state.feed([token_id]).text for token_id in ids) == "one"
    assert state.finish() == "\n\nHum"
    assert state.finish() == ""


def test_half_a_character_at_the_end_comes_after_what_was_held_back() -> None:
    text = tokenizer("byte-level")
    ids = [*text.encode("a ST"), text.encode("👍🏽")[0]]
    state = TextState(Detokenizer(text), stop=("STOP",))
    assert state.feed(ids).text + state.finish() == text.decode(ids) == "a ST\ufffd"


def test_a_stop_string_completed_by_the_flush_is_cut() -> None:
    text = tokenizer("byte-level")
    state = TextState(Detokenizer(text), stop=("a\ufffd",))
    assert state.feed([*text.encode("ba"), text.encode("👍🏽")[0]]).text + state.finish() == "b"
    assert state.stop == "a\ufffd"


def test_the_first_completed_stop_string_wins_and_of_several_the_longest() -> None:
    def run(*stops: str) -> tuple[str, str | None]:
        delta = TextState(Detokenizer(tokenizer("byte-level")), stop=stops).feed(
            tokenizer("byte-level").encode("xabcd")
        )
        return delta.text, delta.stop

    assert run("bcd", "c") == ("xab", "c")
    assert run("c", "abc") == run("abc", "c") == ("x", "abc")
    assert run("nothing") == ("xabcd", None)


def test_special_tokens_that_are_left_out_do_not_match_but_count() -> None:
    text = tokenizer("byte-level")
    ids = text.encode("a<|im_end|>b")
    state = TextState(Detokenizer(text), stop=("<|im_end|>", "b"))
    delta = state.feed(ids)
    assert (delta.text, delta.num_tokens, delta.stop) == ("a", len(ids), "b")
    shown = TextState(Detokenizer(text, skip_special_tokens=False), stop=("<|im_end|>",)).feed(ids)
    assert (shown.text, shown.num_tokens, shown.stop) == ("a", 2, "<|im_end|>")


def test_an_empty_stop_string_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        TextState(Detokenizer(tokenizer("byte-level")), stop=("",))


def test_a_hostile_stop_string_costs_no_more_than_another() -> None:
    text = tokenizer("byte-level")
    ids = text.encode("aaaa " * 2000)
    state = TextState(Detokenizer(text), stop=("a" * 5000 + "b", "aaaa aaaa aaaa b", "\n\nHuman:", "</s>"))
    us = processor_s(lambda: [state.feed((token_id,)) for token_id in ids]) / len(ids) * 1e6
    print(f"{us:.2f} us per token with four stop strings")
    assert us < 200
