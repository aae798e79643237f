"""What training sees and what the tests ask never meet."""

import random
import re

import pytest

from jaxinfer.demo import evaluate
from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.dialogues import TASKS, conversation, plain_text
from jaxinfer.demo.corpus.numbers import HELDOUT_SUMS, SUMS, draw_sum, heldout_sums, number_word
from jaxinfer.demo.corpus.refusal_texts import REFUSED
from jaxinfer.demo.corpus.turn import CASES, essence, say, verbatim
from jaxinfer.demo.rendering import Renderer

NUM_DOCUMENTS = 3_000


@pytest.fixture(scope="module")
def training_texts() -> list[str]:
    rng, renderer = random.Random("test"), Renderer()
    texts = [renderer.document(conversation(rng, rng.choice((1, 1, 2)))) for _ in range(NUM_DOCUMENTS)]
    return texts + [plain_text(rng) for _ in range(NUM_DOCUMENTS // 10)]


@pytest.fixture(scope="module")
def training_users() -> set[str]:
    rng = random.Random("test users")
    dialogues = [conversation(rng, 1) for _ in range(NUM_DOCUMENTS)]
    return {essence(m["content"]) for d in dialogues for m in d.messages if m["role"] == "user"}


def test_one_fifth_of_all_sums_is_held_out_in_both_orders():
    held = heldout_sums()
    assert len(held) == HELDOUT_SUMS == 10_000 // 5
    assert all((b, a) in held for a, b in held)


def test_training_never_draws_a_held_out_sum():
    rng = random.Random(0)
    assert heldout_sums().isdisjoint(draw_sum(rng, "train") for _ in range(20_000))


def test_no_training_text_adds_a_held_out_pair(training_texts):
    added = {
        (int(a), int(b))
        for text in training_texts
        for a, b, total in re.findall(r"(?<!\d)(\d+) \+ (\d+) = (\d+)", text)
        if int(a) + int(b) == int(total)
    }
    assert len(added) > 500
    assert added.isdisjoint(heldout_sums())


@pytest.mark.parametrize("lists", [words.NAMES, words.OBJECTS, words.CITIES], ids=["names", "objects", "cities"])
def test_word_lists_of_the_two_splits_are_disjoint(lists):
    assert not {word.lower() for word in lists["train"]} & {word.lower() for word in lists["heldout"]}


def test_no_held_out_name_or_object_occurs_in_a_training_text(training_texts):
    held = {word.lower() for lists in (words.NAMES, words.OBJECTS) for word in lists["heldout"]}
    seen = {word for text in training_texts for word in re.findall(r"[a-z]+", text.lower())}
    assert len(seen) > 3_000
    assert not seen & held


@pytest.mark.parametrize("task", TASKS)
def test_no_held_out_question_is_asked_in_training(task, training_users):
    asked = [q.dialogue.messages[-2]["content"] for q in evaluate.questions(task, 80)]
    assert not {essence(text) for text in asked} & training_users


def test_polite_words_never_turn_a_training_phrasing_into_a_held_out_one():
    rng = random.Random(1)
    drawn = {essence(SUMS.pick(rng, "train")) for _ in range(20_000)}
    assert drawn.isdisjoint(essence(text) for text in SUMS.heldout)


def test_held_out_questions_come_in_all_four_casings():
    asked = evaluate.questions("extraction", 40)
    assert [q.case for q in asked] == list(CASES) * 10
    assert asked[1].dialogue.messages[-2]["content"].islower()
    assert asked[2].dialogue.messages[-2]["content"].isupper()


def test_held_out_refusals_are_many_and_of_their_own():
    assert len(REFUSED["heldout"]) >= 100
    assert not {essence(text) for text in REFUSED["train"]} & {essence(text) for text in REFUSED["heldout"]}


def test_the_same_seed_writes_the_same_conversations():
    first, second = (conversation(random.Random(7), 3) for _ in range(2))
    assert first == second


def test_values_to_copy_are_recased_with_their_sentence():
    user, values = say(random.Random(0), f"Spell {verbatim('Zoe')} now", "upper")
    assert (user, values) == ("SPELL ZOE NOW", ["ZOE"])


@pytest.mark.parametrize(("number", "word"), [(0, "zero"), (13, "thirteen"), (40, "forty"), (99, "ninety-nine")])
def test_numbers_are_spelt_in_words(number, word):
    assert number_word(number) == word
