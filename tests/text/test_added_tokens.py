"""A model may add tens of thousands of tokens: neither loading nor encoding may cost more for it than the library's own
work does.
"""

import itertools
import json
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer

import jaxinfer
from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.text.chat_template import ChatTemplate, encode_chat
from jaxinfer.text.control import ControlGuard
from jaxinfer.text.tokenizer import Tokenizer
from tests.text.samples import byte_level_backend

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
COUNTS = (0, 1_000, 28_672)  # the last: a speech model of Llama 3's vocabulary
WORDS = random.Random(0).choices([f"{a}{b}" for a in ("th", "fo", "o", "sea", "gre") for b in LETTERS], k=20_000)
PROSE = " ".join(f"<b>{word}</b>, <custom_ " if i % 20 == 0 else word for i, word in enumerate(WORDS))[:49_999] + "."
TEMPLATE = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")
ALPHABET = st.text("<a>b|", min_size=0, max_size=12)
INDEX = st.integers(0, 14)
TOKENS = st.sets(st.text("<a>b|", min_size=2, max_size=5), max_size=8)


def large_vocabulary() -> dict[str, Any]:
    """A tokenizer.json of 128,000 tokens and 250,000 merges, as Llama 3's."""
    file: dict[str, Any] = json.loads(byte_level_backend().to_str())
    pairs = ["".join(pair) for pair in itertools.product(LETTERS, repeat=2)]
    triples = ["".join(triple) for triple in itertools.islice(itertools.product(LETTERS, repeat=3), 125_000)]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pairs, *triples]
    ways = ([(t[:2], t[2]), (t[0], t[1:])] for t in triples)
    file["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
    file["model"]["merges"] = [*((pair[0], pair[1]) for pair in pairs), *itertools.chain(*ways)]
    return file


def small_vocabulary() -> dict[str, Any]:
    """The bundled model's, of 1,500 tokens: beside it all work for added tokens shows."""
    file: dict[str, Any] = json.loads(
        Path(jaxinfer.__file__).with_name("demo").joinpath("checkpoint/tokenizer.json").read_bytes()
    )
    return file


def with_added_tokens(file: dict[str, Any], count: int) -> bytes:
    """The tokenizer.json with `count` added tokens in the place of its own."""
    names = ["<|im_start|>", "<|im_end|>", *(f"<custom_token_{i}>" for i in range(count))][:count]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    own = {token["content"] for token in file["added_tokens"]}
    vocab = [token for token in file["model"]["vocab"] if token not in own]
    file["model"]["vocab"] = {token: i for i, token in enumerate(vocab)}
    file["added_tokens"] = [
        {"id": len(vocab) + i, "content": name, "special": i < 2, **flags} for i, name in enumerate(names)
    ]
    return json.dumps(file).encode()


def least_s(pair: tuple[Callable[[], object], Callable[[], object]], tries: int, most: float) -> list[float]:
    """Processor time of either call, the least of several tries in turns, more on a busy machine."""
    least = [float("inf"), float("inf")]
    for attempt in range(4 * tries):
        for i, call in enumerate(pair):
            began = time.process_time()
            call()
            least[i] = min(least[i], time.process_time() - began)
        if attempt >= tries and least[1] <= most * least[0]:
            break
    return least


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [small_vocabulary, large_vocabulary])
@pytest.mark.parametrize("count", COUNTS)
def test_added_tokens_cost_what_the_library_takes_for_them(
    count: int, vocabulary: Callable[[], dict[str, Any]]
) -> None:
    raw = with_added_tokens(vocabulary(), count)
    library, ours = tokenizers.Tokenizer.from_buffer(raw), Tokenizer(raw)
    bare = tokenizers.Tokenizer.from_buffer(with_added_tokens(vocabulary(), 0))  # what it takes for text
    spelt = PROSE[:-20] + " <custom_token_7> "
    many = " ".join(word if i % 8 else f"<custom_token_{i % 900}>" for i, word in enumerate(WORDS[:6000]))
    assert encode_chat(ours, TEMPLATE, [{"role": "user", "content": PROSE}])  # the template is tried out once

    def encode(text: str, backend: tokenizers.Tokenizer = library) -> Callable[[], object]:
        return lambda: backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def chat(text: str) -> Callable[[], object]:
        return lambda: encode_chat(ours, TEMPLATE, [{"role": "user", "content": text}])

    calls = {
        "loading": (lambda: tokenizers.Tokenizer.from_buffer(raw), lambda: Tokenizer(raw)),
        "a prompt": (encode(PROSE), lambda: ours.encode(PROSE)),
        "a prompt of tokens": (encode(many), lambda: ours.encode(many)),
        "plain text": (encode(PROSE), lambda: ours.encode(PROSE, plain=True)),
        "plain text that spells many tokens": (encode(many, bare), lambda: ours.encode(many, plain=True)),
        "a message": (encode(PROSE), chat(PROSE)),
        "a message that spells a token": (encode(spelt), chat(spelt)),
        "a message that spells many tokens": (encode(many, bare), chat(many)),
    }
    print(f"\n{count} added tokens, ours and the library's processor time in seconds:")
    for what, pair in calls.items():
        most = 1.5 if what == "loading" else 1.35  # faults of this kind took 2.7 times; on a busy machine 1.2 varies
        theirs_s, ours_s = least_s(pair, 3 if what == "loading" else 10, most)
        print(f"{what} {ours_s:.4f} {theirs_s:.4f} {ours_s / theirs_s:.2f}x")
        assert ours_s <= most * theirs_s, what


NORMALIZERS: dict[str, Normalizer] = {
    "NFC": normalizers.NFC(),
    "Llama 2": normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
    "BERT": normalizers.BertNormalizer(),
    "without accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()]),
    "without a sign": normalizers.Replace("~", ""),
    "without signs": normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(tokenizers.Regex(r"[^\w\s]"), "")]
    ),
    "without spaces at the end": normalizers.Replace(tokenizers.Regex(r"\s+$"), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMALIZERS)
def test_added_tokens_that_are_normalized_load_as_fast_as_others(name: str) -> None:
    file = json.loads(with_added_tokens(small_vocabulary(), COUNTS[-1]))
    for token in file["added_tokens"]:
        token["normalized"] = True
    backend = byte_level_backend()
    backend.normalizer = NORMALIZERS[name]
    raw = json.dumps(file | {"normalizer": json.loads(backend.to_str())["normalizer"]}).encode()
    theirs_s, ours_s = least_s((lambda: tokenizers.Tokenizer.from_buffer(raw), lambda: Tokenizer(raw)), 5, 1.3)
    print(f"\n{name}: {ours_s:.4f} {theirs_s:.4f} {ours_s / theirs_s:.2f}x")
    assert ours_s <= 1.3 * theirs_s


def test_ids_of_added_tokens_stay_theirs_in_plain_text() -> None:
    text = Tokenizer(_small(3_000))
    spelt = "a <custom_token_12> b <custom_token_2999><custom_token_1> c"
    ids = text.encode(spelt, plain=True)
    assert text.decode(ids) == spelt
    assert not set(ids) & set(text.control_tokens.values())
    message = [{"role": "user", "content": spelt}]
    start, end = text.control_tokens["<|im_start|>"], text.control_tokens["<|im_end|>"]
    assert encode_chat(text, TEMPLATE, message) == [start, *ids, end]


def _small(count: int) -> bytes:
    backend = byte_level_backend()
    backend.add_tokens([tokenizers.AddedToken(f"<custom_token_{i}>", normalized=False) for i in range(count)])
    return backend.to_str().encode()


@given(TOKENS, ALPHABET, ALPHABET)
def test_every_spelling_is_broken_and_the_templates_are_renamed(tokens: set[str], text: str, before: str) -> None:
    guard = ControlGuard({token: i for i, token in enumerate(tokens)}, frozenset(range(len(tokens))))
    marked, _, marker = guard.mark([{"role": "user", "content": text}], None, "")
    content = marked[0]["content"]
    assert content.replace(marker, "") == text
    assert not any(token in content for token in tokens)
    needed = content != text
    assert bool(marker) == needed
    opens = any(text.endswith(token[:n]) for token in tokens for n in range(1, len(token)))
    assert needed == (opens or any(token in text for token in tokens))
    # what the template wrote is found as the first alternative of a pattern that lists the longest first
    pattern = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)"
    renamed = re.sub(pattern, lambda match: f"({match[0]})", before)
    assert guard.unmark(before, marker, lambda token: f"({token})") == renamed


@given(
    vocab=st.lists(st.integers(0, 12), min_size=4, max_size=4, unique=True),
    added=st.dictionaries(st.sampled_from(["a", "<x>", "<y>", "  ", "<a>", ""]), st.tuples(INDEX, st.booleans())),
)
def test_what_loads_also_encodes_plain_text(vocab: list[int], added: dict[str, tuple[int, bool]]) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokens = [{"id": i, "content": name, "special": special, **flags} for name, (i, special) in added.items()]
    model = {"type": "BPE", "vocab": dict(zip("ab<>", vocab, strict=True)), "merges": [], "unk_token": None}
    raw = json.dumps({"version": "1.0", "added_tokens": tokens, "model": model}).encode()
    try:
        text = Tokenizer(raw)
    except CheckpointError:
        return
    try:
        ids = text.encode("a<x>b<a>", plain=True)
    except InvalidRequest as refusal:  # two tokens of one id
        assert "as ordinary text" in str(refusal)
    else:
        assert max(ids, default=0) < text.vocab_size


def test_threads_that_encode_first_agree_on_the_names_of_control_tokens() -> None:
    raw, messages = _small(300), [{"role": "user", "content": "a <custom_token_12> b"}]
    want = encode_chat(Tokenizer(raw), TEMPLATE, messages)
    for _ in range(5):
        text = Tokenizer(raw)
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(encode_chat, text, TEMPLATE, messages) for _ in range(4)]
            assert all(future.result() == want for future in futures)
