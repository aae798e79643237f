"""The text side of a model: no jax, so that another process than the engine's can own it."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.resolve import DEMO_FOLDER, Part, resolve, tokenizer_of
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError, ConfigError, InvalidRequest
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.structured import constraint_of
from jaxinfer.protocol.validate import too_long
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.spelling import Spelling
from jaxinfer.text.reading import Reading
from jaxinfer.text.thinking import Thinking
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.tools.formats import LAYOUTS, PROBE, Format, format_of
from jaxinfer.text.tools.reader import ToolUse
from jaxinfer.text.trial import try_text

log = logging.getLogger(__name__)
TOKENIZER_FILE = "tokenizer.json"
_PIECE = 2**15  # characters
_NORMALIZED = 3  # bytes of text for one of its normal form, at most: a Hangul syllable may come as three letters


@dataclasses.dataclass(frozen=True)
class TextSide:
    """All of it is safe from any thread."""

    tokenizer: Tokenizer
    template: ChatTemplate
    folder: Path  # where both come from
    tool_format: Format | None = None
    thinking: Thinking | None = None

    def reading(self, prompt_ids: Sequence[int], tools: ToolUse | None, params: SamplingParams) -> Reading | None:
        """How the answer to a rendered prompt is to be read; None: as plain text."""
        marks_text = self.tool_format is not None and bool(LAYOUTS[self.tool_format].text)
        if self.thinking is None and tools is None and not marks_text:
            return None
        if tools is not None and constraint_of(params) is not None:  # what looks like a call may be what was asked for
            tools = dataclasses.replace(tools, alone=False)
        start = "answering" if self.thinking is None else self.thinking.start(prompt_ids)
        return Reading(self.thinking, start, self.tool_format, tools)

    def facts_for(self, info: ModelInfo) -> ModelInfo:
        """The model with what only its text side knows. Raises CheckpointError for a tokenizer of another model."""
        self._check_ids(info.vocab_size)
        return dataclasses.replace(
            info,
            has_chat_template=self.template.exists,
            chat_template=self.template.sources.get("default", ""),
            tool_format=self.tool_format,
            has_thinking=self.thinking is not None,
        )

    def _check_ids(self, vocab_size: int) -> None:
        """That the model has a row for each id which a plain text may get; of added tokens, which few spell, say so."""
        most = f"below the model's vocab_size ({vocab_size})"
        cure = "Use the tokenizer.json of this model, with --tokenizer."
        if (highest := max(self.tokenizer.ids_around, default=0)) >= vocab_size:
            fact = f"the post_processor of tokenizer.json must add token ids {most}, and it adds {highest}"
            raise CheckpointError(f"{fact}. {cure}")
        if (highest := self.tokenizer.highest_own_id) >= vocab_size:
            fact = f"the vocabulary of tokenizer.json must have token ids {most}, and its highest is {highest}"
            raise CheckpointError(f"{fact}. {cure}")
        beyond = sorted(text for text, token_id in self.tokenizer.added_tokens if token_id >= vocab_size)
        if beyond:
            fact = f"{len(beyond)} added tokens of tokenizer.json are not {most}, such as {beyond[0]!r}"
            log.warning("%s; a prompt that spells one is refused. %s", fact, cure)

    def check_fits(self, num_bytes: int, max_model_len: int, param: str) -> None:
        """Raise InvalidRequest for a text that cannot fit, whatever its tokens: to count them could take a minute."""
        if num_bytes <= max_model_len or self._max_token_bytes is None:
            return
        most = max_model_len * self._max_token_bytes
        if num_bytes > most:
            fact = f", which are at most {most} bytes of text; yours has {num_bytes}. Shorten it"
            at_least = -(-num_bytes // self._max_token_bytes)
            raise too_long(max_model_len, fact, param=param, prompt_tokens=at_least, is_least=True)

    def spell(self, text: str) -> list[int]:
        """Tokens that add this text, byte by byte, to an answer; none where no answer can hold it."""
        if self._spelling is None:
            return self.tokenizer.encode(text, add_special_tokens=False, plain=True)
        return self._spelling(text.encode())

    @cached_property
    def _spelling(self) -> Spelling | None:
        """None for a tokenizer that does not work token by token."""
        return None if self.tokenizer.pieces is None else Spelling(self.tokenizer)

    @cached_property
    def _max_token_bytes(self) -> int | None:
        """How much of a text one token may stand for; None for a tokenizer that does not work token by token."""
        table = self.tokenizer.piece_table(skip_special_tokens=False)
        if table is None:
            return None
        return _NORMALIZED * max(len(table[token_id]) for token_id in self.tokenizer.ids())


def texts_of(message: dict[str, Any]) -> Iterator[str]:
    """What a message brings to the prompt: its content and the arguments of its calls, where they are text."""
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    texts = [message.get("content"), *(given.get("arguments") for given in functions if isinstance(given, dict))]
    return (text for text in texts if isinstance(text, str))


def num_chars(value: Any) -> int:
    """Of all texts in a JSON value, names too."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(num_chars(name) + num_chars(below) for name, below in value.items())
    return sum(map(num_chars, value)) if isinstance(value, list) else 0


def num_bytes(text: str) -> int:
    """In UTF-8; whether it is valid is for the tokenizer to say."""
    if text.isascii():
        return len(text)
    pieces = (text[i : i + _PIECE] for i in range(0, len(text), _PIECE))  # one at a time, for other threads' sake
    return sum(len(piece.encode(errors="surrogatepass")) for piece in pieces)


def load_text(config: EngineConfig, folder: Path) -> TextSide:
    """The tokenizer and template of a checkpoint, or of config.tokenizer and config.chat_template.

    Raises CheckpointError, and ConfigError for defaults that the template does not read and for thoughts that the model
    does not mark.
    """
    source, file = _source(config, folder), config.chat_template
    if (
        source != DEMO_FOLDER or file is not None
    ):  # what strangers wrote is tried in a child with limits before it is run
        try_text(source, file)
    try:
        template = ChatTemplate.from_folder(source, file, config.default_chat_template_kwargs)
    except InvalidRequest as error:
        raise ConfigError(str(error)) from error
    tokenizer = Tokenizer.from_folder(source)
    thinking = Thinking.of(tokenizer, "\n".join(template.sources.values()))
    if thinking is None and config.reasoning_parser != "auto":
        fact = "its tokenizer or its chat template has none"
        law = f"reasoning_parser {config.reasoning_parser} needs a model that marks its thoughts with <think>"
        raise ConfigError(f"{law}, {fact}; leave it out")
    return TextSide(tokenizer, template, source, _tool_format(config, template), thinking)


def _tool_format(config: EngineConfig, template: ChatTemplate) -> Format | None:
    """None for a template that shows no tools: the model would never hear of them."""
    if not template.reads_tools:
        return None
    if config.tool_call_parser != "auto":
        return config.tool_call_parser
    source = template.sources.get("tool_use", template.sources.get("default", ""))
    return format_of(source, template.shown_call(*PROBE))


def new_compiler(config: EngineConfig, folder: Path, vocab_size: int, end_ids: Sequence[int]) -> Compiler:
    """What compiles grammars over a checkpoint's tokenizer. vocab_size: the logits' width."""
    return Compiler(partial(Tokenizer.from_folder, _source(config, folder)), vocab_size, end_ids)


def load_tokenizer(config: EngineConfig, folder: Path) -> Tokenizer:
    """The tokenizer alone."""
    return Tokenizer.from_folder(_source(config, folder))


def _source(config: EngineConfig, folder: Path) -> Path:
    if config.tokenizer is None:
        return folder
    parts: tuple[Part, ...] = ("tokenizer",)
    with tokenizer_of(config.tokenizer):
        return resolve(config.tokenizer, needs=parts).folder
