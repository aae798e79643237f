"""GET /: a chat, as one page put together from the files in web/. It loads nothing, from here or from elsewhere.

Its policy names script and style by hash and is in the page as well, so that the page keeps to it when it is opened
from a file. Source: Content Security Policy Level 3, https://www.w3.org/TR/CSP3/.
"""

import hashlib
import re
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.server.html import UTF8, headers, source

VENDORED = ("markdown-it", "purify", "highlight", "temml")  # the work of others: web/vendor, made by scripts/vendor
SCRIPTS = (
    *("math", "code", "markdown", "tree", "store", "turns", "api", "view"),
    *("files", "drafts", "message", "settings", "transfer", "sidebar", "chat"),
)
LOCAL = "http://localhost:* http://127.0.0.1:*"  # whom a page from a file may ask; the served one asks its server alone

_FOLDER = files("jaxinfer.server") / "web"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


_STYLE = _read("vendor/temml.css") + _read("chat.css")
_COMMENT = re.compile(
    r"^ *(//[^\n]*|/\*\*.*?\*/)\n", re.MULTILINE | re.DOTALL
)  # in lines of its own; browsers need none
_OURS = "".join(_COMMENT.sub("", _read(f"{name}.js")) for name in SCRIPTS)
_SCRIPT = "".join(_read(f"vendor/{name}.js") for name in VENDORED) + f"(() => {{\n'use strict';\n{_OURS}}})();\n"


def policy(connect: str) -> str:
    """Trusted types: what turns text into elements or scripts throws, in browsers that know them. The sanitizer alone
    may make elements. Fonts and pictures are within the page.
    """
    return (
        f"default-src 'none'; script-src {source(_SCRIPT)}; style-src {source(_STYLE)}; img-src data:; "
        "font-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types dompurify"
    )


def assemble() -> bytes:
    """The page. Each mark stands in chat.html once."""
    page = (_FOLDER / "chat.html").read_text("utf-8")
    for mark, content in (("{policy}", policy(f"'self' {LOCAL}")), ("{style}", _STYLE), ("{script}", _SCRIPT)):
        before, _, after = page.partition(mark)
        page = before + content + after
    return page.encode()


PAGE = assemble()
ETAG = f'"{hashlib.sha256(PAGE).hexdigest()[:32]}"'
HEADERS = headers(policy("'self'")) | {"etag": ETAG, "cache-control": "no-cache"}


async def chat_page(request: Request) -> Response:
    """Answers in every status, and without a key: there is nothing in it but what everybody can install."""
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if ETAG in known:
        return Response(status_code=304, headers=HEADERS)
    return Response(PAGE, headers=HEADERS, media_type=UTF8)
