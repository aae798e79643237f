"""Reading: how an answer's text is taken apart, decided once for a request."""

import dataclasses

from jaxinfer.text.message import MessageText
from jaxinfer.text.thinking import Start, Thinking
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.tools.formats import LAYOUTS, Format
from jaxinfer.text.tools.reader import ToolReader, ToolUse


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """thinking: the model's tags, None if it has none.    start: what the prompt has begun.
    form, tools: what is a call; both or none.
    """

    thinking: Thinking | None = None
    start: Start = "answering"
    form: Format | None = None
    tools: ToolUse | None = None

    def new_text(
        self,
        tokenizer: Tokenizer,
        *,
        stop: tuple[str, ...],
        include_stop: bool,
        start_after: int,
        skip: bool,
        verbatim: bool,
        whole: bool,
    ) -> MessageText:
        """The text of one choice. skip: leave special tokens out.    verbatim, whole: as for a MessageText.

        A form that marks text too is read even where nothing is a call. Where special tokens are around calls, none is
        left out: the form's reader takes those out.
        """
        tools = self.tools
        if tools is None and self.form is not None and LAYOUTS[self.form].text:
            tools = ToolUse({}, alone=False)
        if self.form is not None and tools is not None:
            skip = skip and not self._has_special_tags(self.form, tokenizer)
        return MessageText(
            tokenizer,
            stop=stop,
            include_stop=include_stop,
            start_after=start_after,
            skip_special_tokens=skip,
            thinking=self.thinking,
            start=self.start,
            tools=None if self.form is None or tools is None else ToolReader(self.form, tools),
            verbatim=verbatim,
            whole=whole,
        )

    @staticmethod
    def _has_special_tags(form: Format, tokenizer: Tokenizer) -> bool:
        layout, control = LAYOUTS[form], tokenizer.control_tokens
        return any(control.get(tag) in tokenizer.special_ids for tag in (layout.first, layout.closing))
