"""`session_id` of a request: which conversation it is a turn of."""

import re

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import Envelope
from jaxinfer.protocol.validate import invalid, show

MAX_SESSION_ID_CHARS = 128
SESSION_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:@=+-]{{0,{MAX_SESSION_ID_CHARS - 1}}}")  # fits a path, names no file


def read_session_id(
    request: Envelope, header: str | None, num_answers: int, *, is_appended: bool = False
) -> str | None:
    """The session that a request is a turn of, by its field or the header X-Session-ID. Raises InvalidRequest.

    num_answers: that it asks for; a turn has one.    is_appended: to what the session holds.
    """
    given = request.session_id
    if header is not None:
        if given not in (None, header):
            raise invalid("session_id", f"what the header x-session-id says, {show(header)}", given, cure="send one")
        given = header
    if given is None:
        if is_appended:
            raise invalid("session_append", "sent with a session_id", is_appended, cure="add one, or leave it out")
        return None
    if not SESSION_ID.fullmatch(given):
        law = f"1 to {MAX_SESSION_ID_CHARS} letters, digits and . _ : @ = + -, beginning with a letter or a digit"
        raise invalid("session_id", law, given, cure="take another, as of a UUID")
    if num_answers != 1:
        raise InvalidRequest(
            f"a session's turn must have one prompt and one answer, got {num_answers} answers; send n of 1 and one "
            "prompt, or leave session_id out",
            param="session_id",
            code="invalid_value",
        )
    return given
