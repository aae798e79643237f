"""JsonText: whether a value that comes in pieces stands within a string of JSON."""

import re

_QUOTE = re.compile(r'\\.?|"', re.DOTALL)


class JsonText:
    """Fed with a value in pieces. is_in_string: it has begun as JSON does, and what comes next stands in a string."""

    def __init__(self, begins: str) -> None:
        """begins: what JSON may begin with."""
        self.is_in_string = False
        self._begins = begins
        self._is_json: bool | None = None  # not known yet
        self._escapes = False

    def begun_again(self) -> "JsonText":
        return JsonText(self._begins)

    def feed(self, text: str) -> None:
        if self._is_json is None and (begun := text.lstrip()):
            self._is_json = begun[0] in self._begins
        if not self._is_json:
            return
        start, self._escapes = int(self._escapes), False
        for found in _QUOTE.finditer(text, start):
            self.is_in_string ^= found[0] == '"'
            self._escapes = found[0] == "\\"  # the text's last character
