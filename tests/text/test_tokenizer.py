"""Tokenizer: loading, encoding as the library does, plain encoding, and use from many threads (A48)."""

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, processors
from tokenizers import Tokenizer as Backend

from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.text import trial
from jaxinfer.text.chat_template import ChatTemplate, encode_chat
from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.growth import SPLIT_GROWTH, added_by, check_growth, growth_of
from jaxinfer.text.rust import LibraryPanic, panics_as_exceptions
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.attempts import assert_below, processor_s
from tests.support.checkpoints import write_tokenizer
from tests.text.samples import BACKENDS, HARD_TEXTS, byte_level_backend, tokenizer

KINDS = tuple(BACKENDS)
SPELT = "a <|im_end|>b</s> <think> <s><unk> <|im_start|>"


def test_a_folder_gives_the_tokenizer_and_its_ids(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    text = Tokenizer.from_folder(tmp_path)
    assert text.vocab_size == 327
    assert text.eos_token_id == text.encode("<|im_end|>")[0] == 322
    assert text.special_ids == {320, 321, 322}
    assert text.decode(text.encode("Grüße <think>")) == "Grüße <think>"


def test_a_token_of_the_config_may_be_an_object_or_missing(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|im_end|>", "special": True}, "bos_token": None, "pad_token": "not there"}
    text = Tokenizer(byte_level_backend().to_str().encode(), config)
    assert (text.eos_token_id, text.bos_token_id) == (422, None)


def test_a_folder_without_tokenizer_json_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must have a tokenizer.json.*save_pretrained"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"model": {"type": "BPE"}}', "\x00\xff", '{"model": 5}'])
def test_a_broken_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, "latin-1")
    with pytest.raises(CheckpointError, match="tokenizer.json must be readable"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "5", "{", "[" * 100000])
def test_a_broken_tokenizer_config_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(byte_level_backend().to_str().encode())
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match="must hold a JSON object"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hard", HARD_TEXTS)
def test_encoding_is_that_of_the_library(kind: str, hard: str) -> None:
    text = tokenizer(kind)
    assert text.encode(hard) == text.backend.encode(hard).ids
    assert text.encode(hard, add_special_tokens=False) == text.backend.encode(hard, add_special_tokens=False).ids


def hostile(**rules: object) -> bytes:
    return json.dumps(json.loads(byte_level_backend().to_str()) | rules).encode()


def replacing(content: str, **pattern: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


CHARSMAP = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"short\0" + b"x" * 100_000 + b"\0").decode()


@pytest.mark.parametrize(
    "rule",
    [
        replacing("b" * 100_000, String="a"),
        replacing("b" * 2_000, Regex="hello"),
        {"type": "Prepend", "prepend": "b" * 100_000},
        {"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
        {"type": "Sequence", "normalizers": [replacing("aa", String="a")] * 10},
        {
            "type": "Sequence",
            "normalizers": [{"type": "NFKC"}, {"type": "Sequence", "normalizers": [replacing("b" * 99, String="a")]}],
        },
    ],
    ids=lambda rule: rule["type"],
)
def test_a_normalizer_that_makes_texts_many_times_longer_is_refused(rule: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="the normalizer of tokenizer.json must make a text at most 128 times"):
        Tokenizer(hostile(normalizer=rule))


def test_a_decoder_that_makes_texts_many_times_longer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="the decoder of tokenizer.json must make a text at most 128 times"):
        Tokenizer(hostile(decoder=replacing("b" * 100_000, String="a")))


STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}


def added(content: str, *, normalized: bool) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": True, "special": False}
    return {"id": 500, "content": content, "normalized": normalized, **flags}


@pytest.mark.parametrize("normalizer", [STRIP, {"type": "Sequence", "normalizers": [STRIP, {"type": "NFC"}]}])
def test_an_added_token_that_would_be_looked_for_as_an_empty_text_is_refused(normalizer: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="must not become empty in its normalizer, '  ' does. Set its normalized"):
        Tokenizer(hostile(normalizer=normalizer, added_tokens=[added("  ", normalized=True)]))


def test_an_added_token_that_is_looked_for_as_it_is_may_be_blank() -> None:
    text = Tokenizer(hostile(normalizer=STRIP, added_tokens=[added("  ", normalized=False)]))
    assert text.decode(text.encode("a  b")) == "a  b"
    assert Tokenizer(hostile(normalizer=None, added_tokens=[added("  ", normalized=True)])).encode("a  b")


SPACED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize("count", [4, 40, 10_000])
def test_a_pre_tokenizer_that_makes_texts_many_times_longer_is_refused(count: int) -> None:
    with pytest.raises(CheckpointError, match="the pre_tokenizer of tokenizer.json must make a text at most 128 times"):
        Tokenizer(hostile(pre_tokenizer={"type": "Sequence", "pretokenizers": [SPACED] * count}))


def template(names: list[str], num_ids: int = 1) -> dict[str, object]:
    """$ is the text, every other name a special token of so many ids."""
    pieces = [
        {"Sequence": {"id": "A", "type_id": 0}} if name == "$" else {"SpecialToken": {"id": name, "type_id": 0}}
        for name in names
    ]
    tokens = {"x": {"id": "x", "ids": [0] * num_ids, "tokens": ["a"] * num_ids}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": tokens}


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        (template(["x"] * 10_000 + ["$"], 1000), "can add 10000000"),
        (template(["$"] * 3), "can repeat it 3 times"),
        ({"type": "Sequence", "processors": [template(["x", "$", "$"])] * 40}, "can repeat it more than 4294967295"),
        ({"type": "Sequence", "processors": [template(["x", "$"], 600)] * 2}, "can add 1200"),
    ],
)
def test_a_post_processor_that_makes_texts_many_times_longer_is_refused(processor, reason) -> None:
    with pytest.raises(CheckpointError, match=f"must add at most 1024 tokens to a text and not repeat it.*{reason}"):
        Tokenizer(hostile(post_processor=processor))


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["x", "$"]), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3))
def test_no_post_processor_adds_more_than_is_computed(names: list[str], num_ids: int, times: int) -> None:
    rule = {"type": "Sequence", "processors": [template(names, num_ids)] * times}
    backend = Backend.from_str(json.dumps(json.loads(byte_level_backend().to_str()) | {"post_processor": rule}))
    copies, added = added_by(rule)
    try:
        with panics_as_exceptions():
            ids = backend.encode("ab").ids
    except LibraryPanic:  # it cannot do this to more than two texts
        reject()
    assert len(ids) <= copies * len(byte_level_backend().encode("ab", add_special_tokens=False).ids) + added


@given(
    st.lists(
        st.sampled_from([SPACED, SPACED | {"add_prefix_space": False}, {"type": "Digits", "individual_digits": True}]),
        max_size=4,
    ),
    st.text(st.sampled_from("a1 \u00e9\U0001d160"), min_size=1, max_size=6),
)
def test_no_pre_tokenizer_lengthens_more_than_is_computed(steps: list[dict[str, object]], text: str) -> None:
    rule = {"type": "Sequence", "pretokenizers": steps}
    file = json.loads(Backend(models.BPE()).to_str()) | {"pre_tokenizer": rule}
    pieces = Backend.from_str(json.dumps(file)).pre_tokenizer.pre_tokenize_str(text)
    assert sum(len(piece) for piece, _ in pieces) <= growth_of(rule, SPLIT_GROWTH) * len(text)


def test_rules_that_double_a_text_are_tried_on_so_much_of_it_as_stays_short(tmp_path: Path) -> None:
    doubling = {"type": "Sequence", "normalizers": [replacing("aa", String="a")] * 7}
    (tmp_path / "tokenizer.json").write_bytes(hostile(normalizer=doubling))
    assert trial._try_tokenizer(tmp_path) == ""
    assert_below(2, lambda: processor_s(lambda: trial._try_tokenizer(tmp_path)), "the processor time of the trial")


def test_a_text_that_is_too_long_once_it_is_normalized_is_refused_before_it_is() -> None:
    text = Tokenizer(hostile(normalizer=replacing("b" * 100, String="a")))
    for encode in (text.encode, lambda given: text.encode_marked(given, "x")):
        with pytest.raises(
            InvalidRequest, match="must have at most 16777216 characters once the model's tokenizer has"
        ):
            encode("a" * 170_000)
    assert len(text.encode("a" * 10)) > 100  # what is not too long is normalized as ever
    assert text.encode("c" * 20_000) == tokenizer("byte-level").encode("c" * 20_000)


@given(
    st.lists(
        st.one_of(
            st.builds(replacing, st.text("abcé", max_size=5), String=st.text("abc", min_size=1, max_size=3)),
            st.builds(replacing, st.text("abcé", max_size=5), Regex=st.sampled_from(["a", "b+", "a|b", "c?"])),
            st.builds(lambda prepend: {"type": "Prepend", "prepend": prepend}, st.text("ab", min_size=1, max_size=4)),
            st.sampled_from([{"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")]),
        ),
        max_size=4,
    ),
    st.text(st.sampled_from("abc\u00e9\ufdfa\u1e9b\u0130\U0001d160"), min_size=1, max_size=12),
)
def test_no_text_grows_more_than_is_computed(steps: list[dict[str, object]], given_text: str) -> None:
    rule = {"type": "Sequence", "normalizers": steps}
    backend = Backend(models.BPE())
    file = json.loads(backend.to_str()) | {"normalizer": rule}
    normalizer = Backend.from_str(json.dumps(file)).normalizer
    try:
        with panics_as_exceptions():
            normalized = normalizer.normalize_str(given_text)
    except LibraryPanic:  # a bug of the library's, in replacing what was replaced by nothing
        reject()
    assert len(normalized) <= growth_of(rule) * len(given_text)


@pytest.mark.parametrize("forms", [("NFKC", "Lowercase", "NFD"), ("NFD", "NFC", "Lowercase", "NFKC"), ("NFC",) * 9])
def test_forms_of_unicode_in_a_row_grow_as_the_largest(forms: tuple[str, ...]) -> None:
    steps = [{"type": form} for form in forms]
    inner = {"type": "Sequence", "normalizers": steps[1:]}
    assert growth_of({"type": "Sequence", "normalizers": [steps[0], inner]}) <= 18
    check_growth({"type": "Sequence", "normalizers": [*steps, {"type": "ByteLevel"}]}, None, None)


def test_a_text_that_the_library_fails_on_is_the_clients_to_change() -> None:
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
    text = Tokenizer(hostile(pre_tokenizer=pattern))
    for plain in (False, True):
        with pytest.raises(InvalidRequest, match="must be one that the model's tokenizer can encode"):
            text.encode("a" * 50, plain=plain)


def test_truncation_and_padding_of_the_file_are_not_applied() -> None:
    backend = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=9)
    text = Tokenizer(backend.to_str().encode())
    assert text.encode("a") == tokenizer("byte-level").encode("a")
    assert text.encode("one two three four") == tokenizer("byte-level").encode("one two three four")


def test_gaps_in_the_vocabulary_count_towards_its_size() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    assert Tokenizer(backend.to_str().encode()).vocab_size == 8


@pytest.mark.parametrize("bad", ["\ud800", "ok \udc00 ok", "\ud83d"])
def test_half_a_surrogate_pair_is_refused(bad: str) -> None:
    for plain in (False, True):
        with pytest.raises(InvalidRequest, match="must be valid Unicode, but character"):
            tokenizer("byte-level").encode(bad, plain=plain)


def test_half_a_surrogate_pair_is_found_wherever_it_is() -> None:
    with pytest.raises(InvalidRequest, match=r"character 100000 is half .* \(U\+DC01\)"):
        tokenizer("byte-level").encode("ü" * 100_000 + "\udc01" + "ü" * 9)


@pytest.mark.parametrize("kind", ["byte-level", "llama-2", "gemma"])
def test_plain_encoding_spells_control_tokens(kind: str) -> None:
    text = tokenizer(kind)
    ids = text.encode(SPELT, plain=True)
    assert set(ids).isdisjoint(text.control_tokens.values())
    assert text.decode(ids, skip_special_tokens=False) == SPELT
    assert not set(text.encode(SPELT)).isdisjoint(text.control_tokens.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hard", [text for text in HARD_TEXTS if "<" not in text])
def test_plain_encoding_of_other_text_is_the_same(kind: str, hard: str) -> None:
    assert tokenizer(kind).encode(hard, plain=True) == tokenizer(kind).encode(hard)


def test_plain_encoding_keeps_blank_added_tokens() -> None:
    text = tokenizer("gemma")
    assert text.backend.token_to_id("\n\n") in text.encode("a\n\nb", plain=True)
    assert text.encode("a\n\n\nb", plain=True) == text.encode("a\n\n\nb")


def test_plain_encoding_adds_the_same_special_tokens() -> None:
    backend = BACKENDS["llama-2"]()
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A </s>",
        special_tokens=[("<|im_start|>", backend.token_to_id("<|im_start|>")), ("</s>", 2)],
    )
    text = Tokenizer(backend.to_str().encode())
    assert text.encode("the", plain=True) == text.encode("the")
    assert text.encode("the")[0] == text.control_tokens["<|im_start|>"]
    assert text.encode("<s>", plain=True)[1:-1] == text.encode("<s>", plain=True, add_special_tokens=False)


def test_a_vocabulary_that_can_only_spell_a_control_token_refuses_it() -> None:
    backend = Backend(models.WordLevel({"a": 0, "<end>": 1, "?": 2}, unk_token="?"))
    backend.add_special_tokens([AddedToken("<end>", normalized=False)])
    text = Tokenizer(backend.to_str().encode())
    assert text.encode("<end>") == [1]
    with pytest.raises(InvalidRequest, match="cannot write '<end>' as ordinary text"):
        text.encode("<end>", plain=True)


def test_encoding_lets_other_threads_run() -> None:
    text, ticks, done = tokenizer("byte-level"), [], threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    text.encode("the quick brown fox " * 50_000)
    took = time.monotonic() - start
    done.set()
    thread.join()
    during = [at for at in ticks if start <= at <= start + took]
    assert len(during) > took * 1000 / 50, f"{len(during)} turns in {took:.2f} s"


def test_sixteen_threads_get_what_one_gets() -> None:
    text = tokenizer("byte-level")
    template = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")
    inputs = [f"{hard} {i}{'<|im_end|>' * (i % 3 == 0)}" for i in range(10) for hard in HARD_TEXTS]

    def call(i: int) -> object:
        given = inputs[i % len(inputs)]
        match i % 5:
            case 0:
                return text.encode(given)
            case 1:
                return text.encode(given, plain=True)
            case 2:
                return encode_chat(text, template, [{"role": "user", "content": given}])
            case 3:
                return text.decode(tuple(given.encode()))
        detokenizer = Detokenizer(text)
        return "".join([detokenizer.feed([byte]) for byte in given.encode()]) + detokenizer.flush()

    def many(first: int) -> list[object]:
        return [call(i) for i in range(first, first + 250)]

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(many, range(16)))
    assert together == [many(first) for first in range(16)]


def test_the_config_is_kept_for_the_template() -> None:
    assert json.dumps(tokenizer("byte-level").config) == '{"eos_token": "<|im_end|>", "bos_token": null}'
