"""Incremental detokenization: joined deltas are the whole decode, at once, and nothing is ever taken back (A39)."""

import itertools
import random
import time

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.pieces import EACH_BYTE
from jaxinfer.text.rust import LibraryPanic
from jaxinfer.text.tokenizer import Tokenizer
from tests.text.samples import BACKENDS, HARD_TEXTS, random_ids, tokenizer

KINDS = tuple(BACKENDS)
BYTE_FALLBACK = ("llama-2", "gemma")


def streamed(kind: str, ids: list[int], cuts: list[int], skip: bool) -> list[str]:
    """The deltas when ids arrive in groups that end at `cuts`, the flush last."""
    detokenizer = Detokenizer(tokenizer(kind), skip_special_tokens=skip)
    ends = [0, *sorted(cuts), len(ids)]
    return [detokenizer.feed(ids[a:b]) for a, b in itertools.pairwise(ends)] + [detokenizer.flush()]


def byte_runs_are_utf8(kind: str, ids: list[int], skip: bool) -> bool:
    """Whether every run of byte-fallback tokens is valid text, so that all decoders agree about it."""
    text, run = tokenizer(kind), b""
    for token_id in [*ids, 0 if not skip else text.control_tokens["<think>"]]:
        token = text.backend.id_to_token(token_id)
        if token is None or (skip and token_id in text.special_ids):
            continue
        if token.startswith("<0x"):
            run += bytes([int(token[3:5], 16)])
            continue
        if run.decode(errors="ignore").encode() != run:
            return False
        run = b""
    return True


@pytest.mark.parametrize(
    "rounds", [pytest.param(400, id="short"), pytest.param(10_000, marks=pytest.mark.slow, id="long")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_joined_deltas_are_the_whole_decode_for_random_ids(kind: str, rounds: int) -> None:
    rng, text = random.Random(rounds), tokenizer(kind)
    for _ in range(rounds):
        ids, skip = random_ids(kind, rng), rng.random() < 0.5
        whole = text.decode(ids, skip_special_tokens=skip)
        cuts = [rng.randrange(len(ids) + 1) for _ in range(rng.randrange(4))]
        assert "".join(streamed(kind, ids, list(range(len(ids))), skip)) == whole
        assert "".join(streamed(kind, ids, cuts, skip)) == whole
        assert ("\ufffd" in "".join(streamed(kind, ids, cuts, skip))) == ("\ufffd" in whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_decode_is_that_of_the_library(kind: str) -> None:
    rng, text, compared = random.Random(2), tokenizer(kind), 0
    for _ in range(400):
        ids, skip = random_ids(kind, rng), rng.random() < 0.5
        if kind not in BYTE_FALLBACK or byte_runs_are_utf8(kind, ids, skip):
            assert text.decode(ids, skip_special_tokens=skip) == text.backend.decode(ids, skip_special_tokens=skip)
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("kind", ["byte-level", "llama-2", "metaspace", "gemma"])
@pytest.mark.parametrize("hard", HARD_TEXTS)
def test_hard_texts_stream_without_a_replacement_character(kind: str, hard: str) -> None:
    text = tokenizer(kind)
    ids = text.encode(hard)
    deltas = streamed(kind, ids, list(range(len(ids))), True)
    assert "".join(deltas) == text.backend.decode(ids)
    assert "\ufffd" not in "".join(deltas).replace("a literal \ufffd", "")
    assert deltas[-1] == "", "nothing is left to the flush when the text ends with a whole character"


def test_a_character_is_given_out_with_its_last_byte() -> None:
    for kind in ("llama-2", "gemma"):
        text = tokenizer(kind)
        ids = [text.backend.token_to_id(f"<0x{byte:02X}>") for byte in "é👍中\n".encode()]
        assert streamed(kind, ids, list(range(len(ids))), True) == [
            "", "", "é", "", "", "", "👍", "", "", "中", "\n", "",
        ]  # fmt: skip


@pytest.mark.parametrize("kind", ["llama-2", "gemma"])
def test_valid_characters_of_a_broken_byte_run_survive(kind: str) -> None:
    text = tokenizer(kind)
    for raw in (b"a\xff", b"\n\xe4\xb8", b"\xe4\xb8\xadx\xe4", b"\xf0\x9f\x91", b"\xc0\xafok", b"\xed\xa0\x80"):
        ids = [text.backend.token_to_id(f"<0x{byte:02X}>") for byte in raw]
        assert "".join(streamed(kind, ids, list(range(len(ids))), True)) == raw.decode("utf-8", EACH_BYTE)
        assert text.decode(ids) == raw.decode("utf-8", EACH_BYTE)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.BPEDecoder("</w>"),
        decoders.Fuse(),
        decoders.Replace("a", "bb"),
        decoders.ByteFallback(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0), decoders.Fuse()]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
    ],
    ids=str,
)
def test_decoders_that_no_language_model_uses_stream_too(decoder: decoders.Decoder | None) -> None:
    words = ["a", "b", "##c", "d", ".", "'s", "▁x", "▁", "|", "<pad>", "<0x41>", " ", "  y", "e</w>", "é", "Ã", "©"]
    backend = Backend(models.BPE({word: i for i, word in enumerate(words)}, []))
    if decoder is not None:
        backend.decoder = decoder
    text, rng = Tokenizer(backend.to_str().encode()), random.Random(3)
    for _ in range(300):
        ids = [rng.randrange(len(words)) for _ in range(rng.randrange(12))]
        detokenizer = Detokenizer(text)
        deltas = [detokenizer.feed([token_id]) for token_id in ids]
        assert "".join(deltas) + detokenizer.flush() == text.decode(ids) == backend.decode(ids)


def test_a_stream_that_the_library_gives_up_is_begun_anew() -> None:
    text = tokenizer("suffix")
    detokenizer = Detokenizer(text)
    ids = text.encode("the dog and the fox")
    deltas = [detokenizer.feed(ids[:2])]
    detokenizer._inner._stream = GivesUp()
    deltas += [detokenizer.feed([token_id]) for token_id in ids[2:]]
    assert "".join(deltas) + detokenizer.flush() != ""
    assert isinstance(detokenizer._inner._stream, decoders.DecodeStream)


class GivesUp:
    """A DecodeStream in the state that vLLM's users met."""

    def step(self, backend: Backend, token_id: int) -> str:
        raise RuntimeError("Invalid prefix encountered while decoding stream")


def test_a_panic_in_the_library_is_a_refusal_of_the_ids_or_an_ordinary_exception(
    capfd: pytest.CaptureFixture[str],
) -> None:
    backend = Backend(models.BPE({"a": 0, " ": 1}, []))
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)])  # panics on a lone space
    text = Tokenizer(backend.to_str().encode())
    with pytest.raises(InvalidRequest, match="ones that the model's tokenizer can decode"):
        text.decode([1])
    with pytest.raises(LibraryPanic, match="tokenizers library failed"):
        Detokenizer(text).feed([1])
    assert "panicked" in capfd.readouterr().err


def test_an_unfinished_character_is_flushed_as_a_replacement_character() -> None:
    text = tokenizer("byte-level")
    ids = text.encode("👍🏽")
    deltas = streamed("byte-level", ids[:-1], list(range(len(ids) - 1)), True)
    assert deltas[-1] == "\ufffd"
    assert "".join(deltas) == text.decode(ids[:-1])


@pytest.mark.parametrize("kind", ["byte-level", "llama-2", "metaspace", "gemma"])
def test_added_tokens_survive_and_special_ones_are_left_out(kind: str) -> None:
    text = tokenizer(kind)
    ids = text.encode("<think>a</think><|im_end|>", add_special_tokens=False)
    assert text.control_tokens["<think>"] in ids
    both = {skip: "".join(streamed(kind, ids, list(range(len(ids))), skip)).replace(" ", "") for skip in (True, False)}
    assert both == {True: "<think>a</think>", False: "<think>a</think><|im_end|>"}


@pytest.mark.parametrize(("kind", "want"), [("llama-2", "a a"), ("metaspace", "a a"), ("gemma", " a a")])
def test_the_space_before_a_text_is_stripped_as_transformers_does(kind: str, want: str) -> None:
    text = tokenizer(kind)
    blank, letter = (text.backend.token_to_id(token) for token in ("▁", "a"))
    ids = [text.control_tokens["<|im_start|>"], blank, letter, blank, letter]
    assert "".join(streamed(kind, ids, list(range(5)), True)) == want == text.backend.decode(ids)


def test_ids_beyond_the_vocabulary_add_nothing() -> None:
    text = tokenizer("byte-level")
    a = text.encode("a")
    assert text.decode([*a, text.vocab_size, text.vocab_size + 999, *a]) == "aa"
    assert Detokenizer(text).feed([text.vocab_size]) == ""


@pytest.mark.parametrize("ids", [[-1], [2**32], [0, -5]])
def test_ids_that_cannot_be_are_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="token ids must be 0 to 428, got") as refusal:
        tokenizer("byte-level").decode(ids)
    assert str(min(ids) if min(ids) < 0 else max(ids)) in str(refusal.value)


@pytest.mark.parametrize("kind", ["byte-level", "llama-2", "suffix"])
def test_the_cost_of_a_token_does_not_grow(kind: str) -> None:
    text = tokenizer(kind)
    ids = (text.encode("the quick brown fox and 日本 jump") * 2000)[:20000]
    detokenizer, laps = Detokenizer(text), []
    for start in range(0, len(ids), 2000):
        before = time.thread_time()
        for token_id in ids[start : start + 2000]:
            detokenizer.feed((token_id,))
        laps.append((time.thread_time() - before) / 2000 * 1e6)
    print(f"{kind}: {min(laps):.2f} us per token")
    assert min(laps[5:]) < 3 * min(laps[:5])
    assert min(laps) < 50


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "suffix"])
def test_a_text_that_goes_on_keeps_the_space_that_it_begins_with(kind: str) -> None:
    text = tokenizer(kind)
    prompt, whole = (text.encode(each, add_special_tokens=False) for each in ("the answer", "the answer is END"))
    assert whole[: len(prompt)] == prompt
    later = whole[len(prompt) :]
    for cut in range(len(later) + 1):
        detokenizer = Detokenizer(text, goes_on=True)
        assert detokenizer.feed(later[:cut]) + detokenizer.feed(later[cut:]) + detokenizer.flush() == " is END"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if tokenizer(kind).pieces is not None])
def test_a_text_cut_anywhere_may_end_with_its_last_whole_character(kind: str) -> None:
    text = tokenizer(kind)
    for hard in HARD_TEXTS:
        ids = text.encode(hard, add_special_tokens=False)
        whole = text.decode(ids, skip_special_tokens=False)
        for count in range(len(ids) + 1):
            detokenizer = Detokenizer(text, skip_special_tokens=False, whole=True)
            assert whole.startswith(detokenizer.feed(ids[:count]) + detokenizer.flush())
