"""Measures a checkpoint on the held-out sets: `python -m jaxinfer.demo.evaluate [FOLDER]`.

Every set asks in phrasings that training never saw, in four ways of casing, about held-out sums, names and objects;
decoding is greedy and an answer is right only if it is right to the letter.
"""

import argparse
import dataclasses
import json
import random
from pathlib import Path

import jax.numpy as jnp
from tokenizers import Tokenizer

from jaxinfer.demo.corpus.dialogues import TASKS, Dialogue, single
from jaxinfer.demo.corpus.numbers import heldout_sums
from jaxinfer.demo.corpus.refusal_texts import REFUSED
from jaxinfer.demo.corpus.refusals import REFUSAL, THOUGHT
from jaxinfer.demo.corpus.stories import is_story
from jaxinfer.demo.corpus.turn import CASES, Case, Turn, say
from jaxinfer.demo.decode import greedy
from jaxinfer.demo.rendering import Renderer
from jaxinfer.demo.weights import CHECKPOINT, load
from jaxinfer.models.dense import DenseConfig, Params

BARS = {"sums": 0.95, "extraction": 0.95, "tool calls": 0.95, "refusals": 0.95}
MAX_TOKENS = 448  # a count from 1 to 100 takes 400


@dataclasses.dataclass(frozen=True)
class Question:
    """A held-out dialogue and how its user message is cased."""

    task: str
    case: Case
    dialogue: Dialogue


@dataclasses.dataclass(frozen=True)
class EvaluatedAnswer:
    question: Question
    expected: str
    answer: str

    @property
    def right(self) -> bool:
        """Equal to the letter; of a story only its form is fixed."""
        if self.question.task == "stories":
            return is_story(self.answer, self.question.dialogue.messages[-2]["content"])
        return self.answer == self.expected


def questions(task: str, count: int, *, seed: int = 0, thinking: bool = False) -> list[Question]:
    """`count` held-out questions of a task, the four casings in turn. Sums and refusals go through all there are."""
    rng = random.Random(f"held-out {task} {seed}")
    refused = rng.sample(REFUSED["heldout"], len(REFUSED["heldout"]))
    found, used = [], set()
    while len(found) < count:
        case = CASES[len(found) % len(CASES)]
        if task == "refusals":
            user, _ = say(rng, refused[len(found) // len(CASES) % len(refused)], case)
            turn = Turn(task, user, REFUSAL, THOUGHT)
        else:
            turn = TASKS[task](rng, "heldout", case)
        if task == "sums" and len(used) < len(heldout_sums()):
            if turn.answer in used:
                continue
            used.add(turn.answer)
        found.append(Question(task, case, single(turn, thinking=thinking)))
    return found


def evaluate(
    config: DenseConfig,
    params: Params,
    tokenizer: Tokenizer,
    asked: list[Question],
    batch: int,
    max_tokens: int = MAX_TOKENS,
) -> list[EvaluatedAnswer]:
    """Let the model answer all questions greedily, with at most `max_tokens` tokens each."""
    renderer = Renderer()
    prompts = [tokenizer.encode(renderer.prompt(question.dialogue)).ids for question in asked]
    eos = (tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>"))
    answers = greedy(config, params, prompts, max_tokens=max_tokens, eos=eos, batch=batch)
    return [
        EvaluatedAnswer(
            question, renderer.answer(question.dialogue), tokenizer.decode(answer, skip_special_tokens=True)
        )
        for question, answer in zip(asked, answers, strict=True)
    ]


def all_questions(share: float = 1.0) -> list[Question]:
    """Every held-out set, or a share of each; sums and extraction also with thinking on, as tasks of their own."""
    counts = {"sums": len(heldout_sums()), "extraction": 1000, "tool calls": 1000}
    counts["refusals"] = len(CASES) * len(REFUSED["heldout"])
    asked = [question for task in TASKS for question in questions(task, max(4, int(share * counts.get(task, 400))))]
    for task in ("sums", "tool calls"):
        thoughtful = questions(task, max(4, int(share * 400)), seed=1, thinking=True)
        asked += [dataclasses.replace(question, task=f"{task}, thinking") for question in thoughtful]
    return asked


def summary(outcomes: list[EvaluatedAnswer]) -> dict[str, dict[str, float]]:
    """task -> {"all": share right, "count": questions, and the share for each casing}."""
    table: dict[str, dict[str, float]] = {}
    for task in dict.fromkeys(outcome.question.task for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.question.task == task]
        table[task] = {"count": len(own), "all": sum(outcome.right for outcome in own) / len(own)}
        for case in CASES:
            cased = [outcome.right for outcome in own if outcome.question.case == case]
            table[task][case] = sum(cased) / len(cased)
    return table


def markdown(table: dict[str, dict[str, float]]) -> str:
    lines = ["| task | questions | right | " + " | ".join(CASES) + " |", "|---|---|---|" + "---|" * len(CASES)]
    for task, row in table.items():
        shares = " | ".join(f"{row[key]:.1%}" for key in ("all", *CASES))
        lines.append(f"| {task} | {row['count']} | {shares} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=CHECKPOINT)
    parser.add_argument("--share", type=float, default=1.0, help="of the held-out questions to ask")
    parser.add_argument("--task", action="append", help="one of the table's names, given once or more: these alone")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32")
    parser.add_argument("--wrong", type=int, default=5, help="wrong answers to show for each task")
    arguments = parser.parse_args()
    config, params = load(arguments.folder, jnp.dtype(arguments.dtype))
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    asked = all_questions(arguments.share)
    tasks = arguments.task or [question.task for question in asked]
    if unknown := set(tasks) - {question.task for question in asked}:
        parser.error(f"--task must be one of {', '.join(dict.fromkeys(one.task for one in asked))}, got {unknown}")
    asked = [question for question in asked if question.task in tasks]
    outcomes = evaluate(config, params, tokenizer, asked, arguments.batch)
    print(markdown(summary(outcomes)))
    print(wrong_answers(outcomes, arguments.wrong))


def wrong_answers(outcomes: list[EvaluatedAnswer], count: int) -> str:
    lines = []
    for task in dict.fromkeys(outcome.question.task for outcome in outcomes):
        wrong = [outcome for outcome in outcomes if outcome.question.task == task and not outcome.right]
        for outcome in wrong[:count]:
            user = outcome.question.dialogue.messages[-2]["content"]
            shown = {"task": task, "user": user, "expected": outcome.expected, "answer": outcome.answer}
            lines.append(json.dumps(shown, ensure_ascii=False))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
