"""XmlTags: how a form whose calls are a function with parameters spells its tags and the texts between them."""

import dataclasses
import html
import re
from functools import cached_property

from jaxinfer.text.tools.python_calls import MAX_KEY_CHARS

END_FUNCTION = "</function>"
OPENING, CLOSING = "<tool_call>", "</tool_call>"  # around a call
CDATA, END_CDATA = "<![CDATA[", "]]>"
MAX_NAME_CHARS = 256
_EDGE = r"[^<>\s\x00-\x1f\"']"
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#\d{1,7}|#x[\da-fA-F]{1,6});")
_IN_CDATA = re.compile(r"[<&\n]")  # a text with one of these stands in CDATA


@dataclasses.dataclass(frozen=True)
class XmlTags:
    """function, parameter: what stands before a name.    end_parameter: the tag behind a value.

    quote: around a name.    gap: around a value, and behind tags.    has_cdata: a text stands in CDATA or has entities,
    as XML has it; otherwise it is as it stands.
    """

    function: str
    parameter: str
    end_parameter: str
    quote: str = ""
    gap: str = ""
    has_cdata: bool = False

    @cached_property
    def key(self) -> str:
        """A pattern of the names of parameters that are read as they are written."""
        return rf"{_EDGE}(?:[^<>\n{self.quote}]{{0,{MAX_KEY_CHARS - 2}}}{_EDGE})?"

    def head(self, name: str) -> str:
        """What stands before a parameter's value."""
        return f"{self.parameter}{self.quote}{name}{self.quote}>{self.gap}"

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Of which one may end a value, or say where in it none does."""
        cdata = (CDATA, END_CDATA) if self.has_cdata else ()
        return (self.end_parameter, self.parameter, END_FUNCTION, CLOSING, OPENING, self.function, *cdata)

    @cached_property
    def mark(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.marks)))

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """With which a call ends that lacks its own end."""
        return (CLOSING, OPENING, self.function)

    @cached_property
    def early(self) -> tuple[str, ...]:
        """Tags that a call goes on behind, where a parameter follows."""
        return (END_FUNCTION, CLOSING, OPENING, self.end_parameter)

    @cached_property
    def early_run(self) -> re.Pattern[str]:
        return re.compile(rf"(?:\s*(?:{'|'.join(self.early)}))+\s*")

    @cached_property
    def closers_run(self) -> re.Pattern[str]:
        return re.compile(rf"(?:\s*(?:{END_FUNCTION}|{CLOSING}|{self.end_parameter}))*\s*")

    def written(self, text: str) -> str:
        """A text as it stands between a parameter's tags."""
        is_cdata = self.has_cdata and _IN_CDATA.search(text) is not None
        return f"{CDATA}{text}{END_CDATA}" if is_cdata else f"{self.gap}{text}{self.gap}"

    def text_of(self, value: str) -> str:
        """The text that stands so between a parameter's tags."""
        bare = value.strip()
        if self.has_cdata and bare.startswith(CDATA):
            return bare.removeprefix(CDATA).removesuffix(END_CDATA)
        value = value.removeprefix("\n").removesuffix("\n")
        return _ENTITY.sub(lambda found: html.unescape(found[0]), value) if self.has_cdata else value


QWEN3_CODER = XmlTags("<function=", "<parameter=", "</parameter>", gap="\n")
MINICPM5 = XmlTags("<function name=", "<param name=", "</param>", quote='"', has_cdata=True)
