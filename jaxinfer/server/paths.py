"""Which route a path means: clients join a base URL and a path with two slashes, or end it with one."""

import re
from urllib.parse import unquote

from starlette.types import Scope

_SLASHES = re.compile("/{2,}")


def plain(path: str) -> str:
    """The path with single slashes, and none at its end unless that is all of it."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def make_plain(scope: Scope) -> None:
    """Let a request's path be the plain one. A slash that came as %2F, as in a model's name, stays where it is."""
    raw = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    if (path := plain(raw)) != raw:
        scope["raw_path"], scope["path"] = path.encode("latin-1"), unquote(path)
