"""Chat templates: messages to the text a model was trained on, byte for byte as transformers renders it.

A template refuses what it cannot show with InvalidRequest; so does every error inside one, since the messages and the
template together caused it and sending them again cannot help.
"""

import dataclasses
import datetime
import json
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta

from jaxinfer.config import nearest_name
from jaxinfer.errors import CheckpointError, ConfigError, InvalidRequest
from jaxinfer.files import read_text
from jaxinfer.text.messages import (
    ContentFormat,
    format_content,
    plain_data,
    plain_messages,
    plain_objects,
    text_arguments,
    with_text_arguments,
)
from jaxinfer.text.sandbox import MAX_CHARS, ChatEnvironment, LimitExceeded
from jaxinfer.text.tokenizer import Tokenizer, read_json_object, read_tokenizer_config, token_text

# Set by the request itself; template_kwargs may not override them.
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
# Clients send these to every model; a template that does not read them has nothing to switch.
_THINKING = ("enable_thinking", "thinking")  # one switch: each template reads the one or the other
_NO_TEMPLATE = (jinja2.TemplateError, RecursionError, OverflowError)  # what compiling a text raises
_COMMON_VARIABLES = frozenset({"documents", *_THINKING})
_MARK_AT_END = re.compile(r"(?<=\s)[^\w\s]+\Z")
_DATE = "%Y-%m-%d"  # without the time of day, with which no prefix of a prompt would be found again


@dataclasses.dataclass(frozen=True)
class ChatInput:
    """What a template is rendered with: plain data, content in the form the template reads."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool


class ChatTemplate:
    """A checkpoint's chat template, or its absence (`exists` is false and rendering is refused).

    source: the template, or templates by name ("default", and "tool_use" for requests with tools).
    variables: what `template_kwargs` may set.    defaults: values of those that it leaves unset.
    reads_tools: it shows tools to the model, from `tools` or, as Firefunction's, from their JSON text in `functions`.
    now: the clock of `strftime_now`.    max_render_s: processor time that one rendering may take.
    Raises CheckpointError when a template is no valid Jinja, InvalidRequest for defaults that it does not read.
    """

    def __init__(
        self,
        source: str | dict[str, str] | None,
        tokenizer_config: dict[str, Any] | None = None,
        *,
        defaults: dict[str, Any] | None = None,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        max_render_s: float = 2.0,
    ) -> None:
        self.sources: dict[str, str] = {"default": source} if isinstance(source, str) else dict(source or {})
        self.special_tokens = {
            name: text
            for name, value in (tokenizer_config or {}).items()
            if name.endswith("_token") and (text := token_text(value)) is not None
        }
        self._now, self._environment = now, ChatEnvironment(now)
        self._max_render_s = max_render_s
        self._compiled = {name: self._compile(name, text) for name, text in self.sources.items()}
        names = {n for text in self.sources.values() for n in self._names_in(text)}
        self.variables = frozenset(names | _COMMON_VARIABLES) - _RESERVED - self.special_tokens.keys()
        self._defaults: dict[str, Any] = {}
        if defaults:
            self._defaults = self._checked_variables(defaults, "default_chat_template_kwargs")
        self._formats: dict[str, ContentFormat] = {}
        self._text_arguments: dict[str, bool] = {}
        self._reads_functions = "functions" in names and "tools" not in names
        self._reads_functions = self._reads_functions and self._shows_functions()
        self.reads_tools = "tools" in names or self._reads_functions

    @classmethod
    def from_folder(
        cls, path: str | Path, file: str | Path | None = None, defaults: dict[str, Any] | None = None
    ) -> "ChatTemplate":
        """From chat_template.jinja and additional_chat_templates/, else chat_template.json, else tokenizer_config.json.

        file: a template in the place of those.    defaults: as for a ChatTemplate.
        Raises CheckpointError, ConfigError for a `file` that cannot be read, and InvalidRequest as a ChatTemplate does.
        """
        folder = Path(path)
        config = read_tokenizer_config(folder)
        sources = _find_sources(folder, config) if file is None else {"default": read_template(file)}
        return cls(sources, config, defaults=defaults)

    @property
    def exists(self) -> bool:
        """Whether there is a template at all."""
        return bool(self.sources)

    def render(
        self,
        messages: Any,
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """The text of a conversation. continue_final_message: leave the last message open, to be written on.

        Raises InvalidRequest: no template, messages that it refuses, an unknown template variable, or too much output.
        """
        return self.render_input(
            self.prepare(messages, tools, add_generation_prompt, continue_final_message, template_kwargs)
        )

    def prepare(
        self,
        messages: Any,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: dict[str, Any] | None,
    ) -> ChatInput:
        """Check and normalise what `render` was given."""
        if not self.exists:
            raise InvalidRequest(
                "chat needs a chat template, and this model has none (it may be a base model). Use /v1/completions, or "
                "put a chat_template.jinja into the model's folder.",
                param="messages",
            )
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest(
                "continue_final_message writes on in the last message and add_generation_prompt begins a new one: set "
                "one of them to false.",
                param="continue_final_message",
            )
        variables = self._with_defaults(self._checked_variables(template_kwargs or {}))
        plain_tools = None if tools is None else plain_objects(tools, "tools")
        content_format = self._content_format(self._name(plain_tools))
        plain = format_content(plain_messages(messages), content_format)
        if any(message.get("tool_calls") for message in plain) and self._wants_text_arguments(self._name(plain_tools)):
            plain = with_text_arguments(plain)
        return ChatInput(
            plain,
            plain_tools,
            variables,
            add_generation_prompt,
            continue_final_message,
        )

    def render_input(self, chat: ChatInput) -> str:
        """Render what `prepare` made."""
        if not chat.continue_final_message:
            return self._run_or_blame(chat)
        text, opened, tag = _tag_final_message(chat)
        return _cut_at_tag(self._run_or_blame(opened), text, tag)

    def _run_or_blame(self, chat: ChatInput) -> str:
        """Arguments of a call that are no object are named where the template refuses them, and not others."""
        try:
            return self._run(chat)
        except InvalidRequest as refusal:
            if isinstance(refusal.__cause__, LimitExceeded) or (found := text_arguments(chat.messages)) is None:
                raise
            place, text, mended = found
            try:
                self._run(dataclasses.replace(chat, messages=mended))
            except InvalidRequest:
                raise refusal from refusal.__cause__
            raise InvalidRequest(
                f"{place} must be a JSON object, which the model's chat template reads, got {text[:60]!r}. "
                "Send the whole object, or {} for a call that was cut off.",
                param=place,
            ) from refusal

    def _run(self, chat: ChatInput) -> str:
        context = {
            "documents": None,
            **(self._functions(chat.tools) if self._reads_functions else {}),
            **self.special_tokens,
            **chat.variables,
            "messages": chat.messages,
            "tools": chat.tools,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        parts, size = [], 0
        try:
            with self._environment.deadline(self._max_render_s):
                for part in self._compiled[self._name(chat.tools)].generate(context):
                    parts.append(part)
                    size += len(part)
                    if size > MAX_CHARS:
                        raise LimitExceeded(f"wrote more than {MAX_CHARS} characters")
        except Exception as error:  # a template may fail in every way that Python can
            raise InvalidRequest(
                f"the model's chat template refused these messages: {_reason(error)}", param="messages"
            ) from error
        return "".join(parts)

    def _name(self, tools: Any) -> str:
        if tools is not None and "tool_use" in self._compiled:
            return "tool_use"
        if "default" not in self._compiled:
            raise InvalidRequest(
                f"one of the model's chat templates must be named default; it has {', '.join(sorted(self._compiled))}.",
                param="messages",
            )
        return "default"

    def _content_format(self, name: str) -> ContentFormat:
        """Tried out once: a template that reads parts shows a one-part list as it shows the string."""
        if name not in self._formats:
            as_text = self._probe(name, "jaxinfer")
            as_parts = self._probe(name, [{"type": "text", "text": "jaxinfer"}])
            if as_parts is not None and as_text == as_parts:
                self._formats[name] = "either"
            elif as_text is None and as_parts is not None and "'text'" not in as_parts:
                self._formats[name] = "parts"
            else:
                self._formats[name] = "text"
        return self._formats[name]

    def _wants_text_arguments(self, name: str) -> bool:
        """Tried out once: whether a template joins a call's arguments to its text instead of writing them as JSON."""
        if name not in self._text_arguments:
            as_object, as_text = (self._probe_call(name, given) for given in ({"jaxinfer": 1}, '{"jaxinfer": 1}'))
            self._text_arguments[name] = as_text and not as_object
        return self._text_arguments[name]

    def shown_call(self, name: str, arguments: dict[str, Any]) -> str | None:
        """How an answer that is one call of a tool is shown, without what stands around every answer; None where the
        template shows none, or refuses it.
        """
        function = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
        tools: list[dict[str, Any]] = [{"type": "function", "function": function}]
        try:
            wanted: Any = json.dumps(arguments) if self._wants_text_arguments(self._name(tools)) else arguments
            call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": wanted}}
            text = self._try({"role": "assistant", "content": "\uf8ff"}, tools)
            called = self._try({"role": "assistant", "content": "", "tool_calls": [call]}, tools)
        except InvalidRequest:  # no template for tools, or one beyond its limits: a request with tools is told so
            return None
        if text is None or called is None or "\uf8ff" not in text:
            return None
        before, after = text.rsplit("\uf8ff", 1)
        common = os.path.commonprefix([before, called])
        start = len(common)
        end = len(called) - len(os.path.commonprefix([after[::-1], called[start:][::-1]]))
        if (tag := common.rfind("<")) > common.rfind(">"):  # common is also what two tags begin with
            start = tag
        elif mark := _MARK_AT_END.search(common):  # or what a call and a text behind the same mark
            start = mark.start()
        if (tag := called.find(">", end)) > -1 and "<" not in called[end : tag + 1]:
            end = tag + 1
        return called[start:end] if name in called[start:end] else None

    def _functions(self, tools: list[dict[str, Any]] | None) -> dict[str, str]:
        """What a template that shows `functions` reads in the place of `tools`, as Firefunction's model card has it."""
        functions = [tool.get("function", tool) for tool in tools or ()]
        text = json.dumps(functions, ensure_ascii=False, indent=4)
        return {"functions": text, "datetime": self._now().strftime(_DATE)}

    def _shows_functions(self) -> bool:
        """Whether `functions` is a text to the template, which it shows as it stands; a list would be gone through."""
        tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "jaxinfer"}}]
        try:
            rendered = self._run(ChatInput([{"role": "user", "content": "x"}], tools, {}, True, False))
        except InvalidRequest:
            return False
        return self._functions(tools)["functions"] in rendered

    def _probe_call(self, name: str, arguments: Any) -> bool:
        """Whether a call with these arguments is shown with them as JSON."""
        call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
        tools: list[dict[str, Any]] | None = [] if name == "tool_use" else None
        rendered = self._try({"role": "assistant", "content": "", "tool_calls": [call]}, tools) or ""
        return '{"jaxinfer": 1}' in rendered or '{"jaxinfer":1}' in rendered

    def _try(self, answer: dict[str, Any], tools: list[dict[str, Any]] | None) -> str | None:
        """A conversation that ends with this answer; None where the template refuses it."""
        try:
            return self._run(ChatInput([{"role": "user", "content": "x"}, answer], tools, {}, False, False))
        except InvalidRequest as refusal:
            if isinstance(refusal.__cause__, LimitExceeded):
                raise
            return None

    def _probe(self, name: str, content: Any) -> str | None:
        tools: list[dict[str, Any]] | None = [] if name == "tool_use" else None
        try:
            rendered = self._run(ChatInput([{"role": "user", "content": content}], tools, {}, True, False))
        except InvalidRequest as refusal:
            if isinstance(refusal.__cause__, LimitExceeded):
                raise
            return None
        return rendered if "jaxinfer" in rendered else None

    def _compile(self, name: str, source: str) -> jinja2.Template:
        try:
            return self._environment.from_string(source)
        except _NO_TEMPLATE as error:
            fault = _reason(error).rstrip(".")
            raise CheckpointError(
                f"the model's chat template ({name}) must be valid Jinja2: {fault}. Download it again."
            ) from error

    def _names_in(self, source: str) -> set[str]:
        used = jinja2.meta.find_undeclared_variables(self._environment.parse(source))
        return used - self._environment.globals.keys()

    def _with_defaults(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Either spelling of the thinking switch stands in the place of both."""
        hidden = _THINKING if any(name in variables for name in _THINKING) else ()
        return {name: value for name, value in self._defaults.items() if name not in hidden} | variables

    def _checked_variables(
        self, template_kwargs: dict[str, Any], field: str = "chat_template_kwargs"
    ) -> dict[str, Any]:
        for name in template_kwargs:
            if name not in self.variables:
                close = nearest_name(name, self.variables)
                raise InvalidRequest(
                    f"{field} must name variables of the model's chat template, got {name!r}. "
                    + (f"Did you mean {close!r}? " if close else "")
                    + f"It reads {', '.join(sorted(self.variables))}.",
                    param=field,
                )
        variables: dict[str, Any] = plain_data(template_kwargs, field)
        wanted = [variables[name] for name in _THINKING if name in variables]
        if len(wanted) == 1:
            variables |= dict.fromkeys(_THINKING, wanted[0])
        if variables.get("documents") is not None:
            plain_objects(variables["documents"], "documents")
        return variables


def read_template(file: str | Path, flag: str = "chat_template") -> str:
    """A template of the user's. flag: what named it. Raises ConfigError unless it can be read and is valid Jinja."""
    source = read_text(file, flag)
    try:
        ChatEnvironment(datetime.datetime.now).from_string(source)
    except _NO_TEMPLATE as error:
        fault = f"{file} ({flag}) must be valid Jinja2: {_reason(error).rstrip('.')}"
        raise ConfigError(f"{fault}; mend it, or name another file") from error
    return source


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Any,
    *,
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template_kwargs: dict[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation. Only the template writes control tokens: where the content of a message, a tool or a
    template variable spells one, it is encoded as plain text. The model's own tags (`<think>`, `<tool_call>`) stay
    tokens in what the assistant said and the system prompt, as they were when the model wrote them.

    Content that spells none is encoded as tokenizer.encode(template.render(...)) would. Raises InvalidRequest.
    """
    chat = template.prepare(messages, tools, add_generation_prompt, continue_final_message, template_kwargs)
    others, sources = [chat.tools, chat.variables], "".join(template.sources.values())
    marked, (marked_tools, variables), marker = tokenizer.guard.mark(chat.messages, others, sources)
    if not marker:
        return tokenizer.encode(template.render_input(chat), add_special_tokens=False)
    chat = dataclasses.replace(chat, messages=marked, tools=marked_tools, variables=variables)
    return tokenizer.encode_marked(template.render_input(chat), marker)


def _find_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    sources = {}
    if (folder / "chat_template.jinja").is_file():
        sources["default"] = _read(folder / "chat_template.jinja")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = _read(file)
    if sources:
        return sources
    if (folder / "chat_template.json").is_file():
        config = read_json_object(folder / "chat_template.json")
    match config.get("chat_template"):
        case None:
            return {}
        case str(source):
            return {"default": source}
        case list(named) if all(isinstance(item, dict) for item in named):
            sources = {item.get("name"): item.get("template") for item in named}
        case dict(sources):
            pass
    if not sources or not all(isinstance(text, str) for pair in sources.items() for text in pair):
        raise CheckpointError(
            f"the chat template in {folder} must be a string, or a list of objects with a name and a template. "
            "Download tokenizer_config.json again."
        )
    return sources


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"the chat template {file} must be UTF-8 text: {error}. Download it again.") from error
    except OSError as error:
        raise CheckpointError(f"cannot read the chat template {file}: {error.strerror}") from error


def _tag_final_message(chat: ChatInput) -> tuple[str, ChatInput, str]:
    """The last message's text, and the same chat with a tag at its end. The tag's space shows whether it is trimmed."""
    last = chat.messages[-1]
    content, tag = last.get("content"), f"\uf8ff{secrets.token_hex(8)} "
    tagged: str | list[dict[str, Any]]
    if isinstance(content, str):
        text, tagged = content, content + tag
    elif isinstance(content, list) and content:
        text = content[-1]["text"]
        tagged = [*content[:-1], {**content[-1], "text": text + tag}]
    else:
        raise InvalidRequest(
            "continue_final_message needs a last message with content to continue, and it has none. Give it content, "
            "or ask for a new message with add_generation_prompt.",
            param="continue_final_message",
        )
    messages = [*chat.messages[:-1], {**last, "content": tagged}]
    return text, dataclasses.replace(chat, messages=messages), tag


def _cut_at_tag(rendered: str, text: str, tag: str) -> str:
    at = rendered.rfind(tag.strip())
    if at < 0 or text.strip() not in rendered:
        raise InvalidRequest(
            "continue_final_message needs a chat template that shows the last message unchanged, and this model's "
            "template does not. Ask for a new message with add_generation_prompt.",
            param="continue_final_message",
        )
    whole = rendered.startswith(tag, at)
    return rendered[:at] if whole else rendered[:at].rstrip()


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    return str(error) or type(error).__name__
