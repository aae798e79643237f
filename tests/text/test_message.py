"""MessageText: thoughts, content and calls of an answer, the same however its tokens are cut into calls."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.message import MessageText
from jaxinfer.text.thinking import Thinking
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.tools.reader import ToolReader, ToolUse, WholeCalls

TOKENIZER = Tokenizer.from_folder(DEMO_FOLDER)
TEMPLATE = ChatTemplate.from_folder(DEMO_FOLDER)
THINKING = Thinking.of(TOKENIZER, TEMPLATE.sources["default"])
CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
PIECES = ["<think>", "</think>", "\n", "\n\n", " ", "One two", "🙂", "STOP", CALL, CALL[:40], "<tool_call>", "x"]


def read(ids: list[int], cuts: list[int], start: str, stop: tuple[str, ...], after: int) -> tuple:
    """What the answer is: content, thoughts, calls, the stop string, tokens that count, tokens of thoughts."""
    text = MessageText(
        TOKENIZER,
        stop=stop,
        start_after=after,
        thinking=THINKING,
        start=start,
        tools=ToolReader("hermes", ToolUse({"now": {}})),
    )
    content, reasoning, num_tokens, num_thinking, calls = "", "", 0, 0, WholeCalls()
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    for begin, end in zip(edges, edges[1:], strict=False):
        delta = text.feed(ids[begin:end])
        said = delta.text + (text.finish() if end == len(ids) and delta.stop is None else "")
        parts = text.take()
        content += calls.add(parts.calls, said)
        reasoning, num_thinking = reasoning + parts.reasoning, num_thinking + parts.num_thinking
        num_tokens += delta.num_tokens
        if delta.stop is not None or end == len(ids):
            break
    return content, reasoning, [(c.name, c.arguments) for c in calls.calls], text.stop, num_tokens, num_thinking


@given(st.sampled_from(["", "Hm.\n"]), st.lists(st.sampled_from([" ", "\n", "\n\n", "x"]), max_size=5))
def test_content_whose_form_was_asked_for_is_verbatim_behind_thoughts(thoughts, pieces):
    text = MessageText(TOKENIZER, thinking=THINKING, start="thinking", verbatim=True)
    said = "".join(pieces)
    ids = TOKENIZER.encode(f"{thoughts}</think>{said}", add_special_tokens=False)
    assert "".join(text.feed([token]).text for token in ids) + text.finish() == said


@given(st.sampled_from(["thinking", "answering"]), st.integers(1, 40), st.booleans())
def test_thoughts_and_content_end_alike_where_a_request_has_a_grammar(start, count, whole):
    """With their last whole character; without one the sign stands for what is missing."""
    text, said = MessageText(TOKENIZER, thinking=THINKING, start=start, whole=whole), "🙂" * 10
    ids = TOKENIZER.encode(said, add_special_tokens=False)[:count]
    ended = text.feed(ids).text + text.finish() + text.take().reasoning
    assert said.startswith(ended) if whole else ended == TOKENIZER.decode(ids, skip_special_tokens=False)


@settings(max_examples=300)
@given(
    texts=st.lists(st.sampled_from(PIECES), max_size=14),
    cuts=st.lists(st.integers(0, 120), max_size=10),
    start=st.sampled_from(["thinking", "answering", "either"]),
    stop=st.sampled_from([(), ("STOP",), ("\n\n",), ("two",)]),
    after=st.sampled_from([0, 0, 3, 20]),
)
def test_every_way_of_cutting_reads_the_same(texts, cuts, start, stop, after):
    ids = TOKENIZER.encode("".join(texts), add_special_tokens=False)
    whole = read(ids, [], start, stop, after)
    assert read(ids, cuts, start, stop, after) == whole
    assert read(ids, list(range(len(ids))), start, stop, after) == whole
    content, reasoning, calls, _, num_tokens, num_thinking = whole
    assert num_thinking <= num_tokens <= len(ids)
    if start == "answering":
        assert (reasoning, num_thinking) == ("", 0)
    if not stop and not calls and start == "answering":
        assert content == "".join(texts)


MARKS = "👩\u200d👩\u200d👧\u200d👦 漢字かな é🙂 नि 🏳\ufe0f\u200d🌈"  # of many bytes, which the demo's tokens split


def test_characters_of_many_tokens_come_whole_among_thoughts_and_in_arguments():
    """A39: wherever the tokens are cut. What is told is never taken back, so that no delta holds half a character."""
    arguments = json.dumps({"a": MARKS, MARKS: [MARKS]}, ensure_ascii=False)
    call = f'<tool_call>\n{{"name": "now", "arguments": {arguments}}}\n</tool_call>'
    ids = TOKENIZER.encode(f"<think>{MARKS}</think>{call}", add_special_tokens=False)
    assert len(ids) > len(MARKS) * 4, "characters are of many tokens"
    whole = read(ids, [], "either", (), 0)
    assert whole[:3] == ("", MARKS, [("now", arguments)])
    for cuts in (*([cut] for cut in range(len(ids))), list(range(len(ids))), list(range(0, len(ids), 2))):
        assert read(ids, cuts, "either", (), 0) == whole


def test_the_tags_are_found_by_their_tokens_alone():
    """The same characters, encoded as ordinary text, are text."""
    ids = TOKENIZER.encode("<think>a</think>b", add_special_tokens=False, plain=True)
    assert read(ids, [], "either", (), 0)[:2] == ("<think>a</think>b", "")
    ids = TOKENIZER.encode("<think>a</think>b", add_special_tokens=False)
    assert read(ids, [], "either", (), 0)[:2] == ("b", "a")


def test_thoughts_begin_among_the_first_tokens_or_not_at_all():
    """As the engine has it, which counts them."""
    opens, closes, blank, word = (TOKENIZER.encode(text)[0] for text in ("<think>", "</think>", "\n", "x"))
    for lead, thinks in ((0, True), (3, True), (4, False)):
        ids = [blank] * lead + [opens, word, closes, word]
        content, reasoning, *_ = read(ids, [], "either", (), 0)
        assert (content, reasoning) == (("x", "x") if thinks else ("\n" * lead + "<think>x</think>x", ""))


def test_line_ends_after_thoughts_count_among_the_tokens_before_a_stop_string_is_looked_for():
    closes, blank, word, end = (TOKENIZER.encode(text)[0] for text in ("</think>", "\n\n", "x", "S"))
    for after, said in ((4, "x"), (5, "xSx")):
        content, _, _, stop, num_tokens, _ = read([word, closes, blank, word, end, word], [], "thinking", ("S",), after)
        assert (content, stop, num_tokens) == (said, "S" if after == 4 else None, 5 if after == 4 else 6)


def test_a_model_without_tags_or_thoughts_in_its_template_does_not_think():
    assert Thinking.of(TOKENIZER, "{{ messages }}") is None
