"""Dialogues as the text and the tokens that the model reads, and which of those tokens it is trained to write."""

import json
from pathlib import Path
from typing import NoReturn

import jinja2.sandbox
import numpy as np
from tokenizers import Tokenizer

from jaxinfer.demo.corpus.dialogues import Dialogue

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # special: skipped when decoding
MARK_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"


class Renderer:
    """The chat template, compiled once, with what transformers gives to every template."""

    def __init__(self) -> None:
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        env.globals["raise_exception"] = _raise
        self._template = env.from_string(TEMPLATE_FILE.read_text())

    def document(self, dialogue: Dialogue) -> str:
        """The whole dialogue, answers included, ended by <|endoftext|>."""
        text = self._template.render(messages=dialogue.messages, tools=dialogue.tools)
        return text.rstrip("\n") + "<|endoftext|>"

    def prompt(self, dialogue: Dialogue) -> str:
        """What the model is given to write the dialogue's last message."""
        return self._template.render(
            messages=dialogue.messages[:-1],
            tools=dialogue.tools,
            add_generation_prompt=True,
            enable_thinking=dialogue.thinking,
        )

    def answer(self, dialogue: Dialogue) -> str:
        """What the model must write after `prompt`, its <|im_end|> left out."""
        whole = self._template.render(messages=dialogue.messages, tools=dialogue.tools)
        return whole.removeprefix(self.prompt(dialogue)).removesuffix("<|im_end|>\n")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class AnswerMasks:
    """Finds the tokens of a document that the model itself writes: answers, thoughts if any, and what ends them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        def ids(text: str) -> list[int]:
            return tokenizer.encode(text).ids

        self._header = ids("<|im_start|>assistant\n")
        self._no_thought = ids("<think>\n\n</think>\n\n")
        (self._end,) = ids("<|im_end|>")

    def written(self, tokens: list[int]) -> np.ndarray:
        """bool[len(tokens)]: whether the model writes this token."""
        mask = np.zeros(len(tokens), bool)
        start = 0
        while (start := _find(tokens, self._header, start)) >= 0:
            first = start + len(self._header)
            if tokens[first : first + len(self._no_thought)] == self._no_thought:
                first += len(self._no_thought)
            last = tokens.index(self._end, first)
            mask[first : last + 1] = True
            start = last
        return mask


def _find(tokens: list[int], part: list[int], start: int) -> int:
    while part[0] in tokens[start:]:
        start = tokens.index(part[0], start)
        if tokens[start : start + len(part)] == part:
            return start
        start += 1
    return -1
