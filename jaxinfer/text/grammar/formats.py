"""Formats of texts for which the grammar's library has more than there is: its texts are narrowed to those of the RFCs.

It lets the second 60 come in any minute, February 29 in any year, and a host's name be as long as it may.
"""

from typing import Any

MAX_HOSTNAME_CHARS = 253  # RFC 1035, written with dots
_SECONDS = ":[0-5][0-9]"  # a leap second is one of few minutes, which no expression tells
_LEAP = "(?:..(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = f"(?:....-(?:0[13-9]|1.)-..|....-02-(?:[01].|2[0-8])|{_LEAP}-02-29)"
_PATTERNS = {"date": f"^{_DAY}$", "time": f"^..:..{_SECONDS}", "date-time": f"^{_DAY}.[0-9]{{2}}:..{_SECONDS}"}


def narrow_format(part: dict[str, Any]) -> None:
    """Add to a part of a schema what its format says beyond the library's. A list of values says what may come."""
    name = part.get("format")
    if not isinstance(name, str) or part.keys() & {"const", "enum"}:
        return
    if name == "hostname":
        most = part.get("maxLength", MAX_HOSTNAME_CHARS)
        if isinstance(most, int | float):
            part["maxLength"] = min(most, MAX_HOSTNAME_CHARS)
    elif (pattern := _PATTERNS.get(name)) is not None:
        others = part.get("allOf", [])
        if "pattern" not in part:
            part["pattern"] = pattern
        elif isinstance(others, list):
            part["allOf"] = [*others, {"pattern": pattern}]
