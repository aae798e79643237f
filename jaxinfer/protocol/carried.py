"""What every API's request has in common with a chat's, into which it is translated: one reader, one validator, one
answer. Errors then name what the client wrote.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import REFUSED, SAMPLING_FIELDS, Envelope, Refusal
from jaxinfer.protocol.structured import STRUCTURED

# Refused under every name by which the APIs' clients may know it
OTHERS_REFUSED: dict[str, Refusal] = {
    **REFUSED,
    "n": Refusal((1,), cure="ask again for another answer"),
    "prompt_logprobs": Refusal(cure="send the prompt to /v1/completions"),
    "session_history": Refusal((True,)),
    "session_append": Refusal((False,), cure="send the whole conversation"),
    "functions": Refusal(),
    "function_call": Refusal(("none",)),
    "modalities": Refusal((["text"],)),
}
# chat's tools, and Ollama's, have a level more than those of the other APIs
_TOOL_PATH = re.compile(r"(?<![.\w])tools\[(\d{1,6})\]\.function(\.parameters)?\b")
_ENVELOPE = frozenset(field.name for field in msgspec.structs.fields(Envelope))


def carried(body: Mapping[str, Any], refused: Mapping[str, Refusal]) -> dict[str, Any]:
    """The fields that mean in a chat what they mean here."""
    same = (SAMPLING_FIELDS | STRUCTURED | _ENVELOPE | {"chat_template_kwargs"}) - refused.keys()
    return {name: value for name, value in body.items() if name in same}


@contextlib.contextmanager
def speaking_of(names: Mapping[str, str], places: Sequence[int] = ()) -> Iterator[None]:
    """Let what is refused within name fields as this API does. names: chat's word for a field, and this API's;
    `parameters`: that of a tool without chat's level of `function`.    places: where chat's tools stood in the request.
    """

    def flat(path: re.Match[str]) -> str:
        place = places[int(path[1])] if int(path[1]) < len(places) else path[1]
        return f"tools[{place}]" + (f".{names.get('parameters', 'parameters')}" if path[2] else "")

    try:
        yield
    except InvalidRequest as error:
        message, param = str(error), error.param or ""
        if "parameters" in names:
            message, param = (_TOOL_PATH.sub(flat, text) for text in (message, param))
        for chat_s, own in names.items():
            begins = "" if "_" in chat_s else "^"  # elsewhere in a message it is a word like others
            message = re.sub(rf"{begins}\b{chat_s}\b", own, message)
        of_param = (chat_s for chat_s in names if re.match(rf"{re.escape(chat_s)}(?![^.\[])", param))
        field = max(of_param, key=len, default="")
        error.args, error.param = (message,), error.param and names.get(field, "") + param[len(field) :]
        raise
