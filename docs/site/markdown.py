"""Markdown to HTML that works from a file: headings with GitHub's anchors, links that lead to what is built."""

import dataclasses
import posixpath
import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

FORMATTER = HtmlFormatter(nowrap=True)
LANGUAGES = {"": "text", "sh": "bash"}
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//")


@dataclasses.dataclass(frozen=True)
class Section:
    """What stands below one heading. level: 1 to 6.    text: without markup, for the search."""

    level: int
    title: str
    anchor: str
    text: str


@dataclasses.dataclass(frozen=True)
class Rendered:
    """files: what the text links to or shows, as paths in the repository."""

    html: str
    sections: tuple[Section, ...]
    files: tuple[str, ...]


def place(file: str) -> str:
    """Where the site has a file of the repository; folders stay as they are, so relative links do too."""
    folder, name = posixpath.split(file)
    if name == "README.md":
        return posixpath.join(folder, "index.html")
    stem, suffix = posixpath.splitext(name)
    if suffix in (".md", ".ipynb"):
        return posixpath.join(folder, f"{stem}.html")
    return file if suffix in (".png", ".svg") else f"{file}.html"


def render(source: str, file: str, taken: Sequence[str] = ()) -> Rendered:
    """source: Markdown.    file: where it lies in the repository, from which its links lead.

    taken: anchors of what stands before it on the same page.
    """
    parser = MarkdownIt("commonmark", {"highlight": _highlighted}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    tokens = parser.parse(source)
    sections = _anchored(tokens, taken)
    files = _linked(tokens, file)
    return Rendered(parser.renderer.render(tokens, parser.options, {}), tuple(sections), tuple(files))


def code(source: str, name: str) -> str:
    """A file's text as highlighted HTML; name decides the language."""
    try:
        lexer = get_lexer_for_filename(name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return f"<pre><code>{highlight(source, lexer, FORMATTER)}</code></pre>"


def slug(title: str, taken: Sequence[str] = ()) -> str:
    """GitHub's anchor of a heading: lower case, no punctuation, - for spaces, a number where it is taken."""
    plain = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    again = sum(anchor == plain or bool(re.fullmatch(re.escape(plain) + r"-\d+", anchor)) for anchor in taken)
    return f"{plain}-{again}" if again else plain


def _highlighted(text: str, language: str, _: Any) -> str:
    return highlight(text, get_lexer_by_name(LANGUAGES.get(language, language), stripnl=False), FORMATTER)


def _anchored(tokens: list[Token], taken: Sequence[str]) -> list[Section]:
    """The sections in order; each heading gets its anchor."""
    found: list[tuple[int, str, str, list[str]]] = []
    for token, after in zip(tokens, tokens[1:], strict=False):
        if token.type == "heading_open":
            title = _plain(after)
            anchor = slug(title, [*taken, *(entry[2] for entry in found)])
            token.attrSet("id", anchor)
            found.append((int(token.tag[1]), title, anchor, []))
        elif found and token.type in ("inline", "fence") and token.content != found[-1][1]:
            found[-1][3].append(_plain(token))
    return [Section(level, title, anchor, " ".join(texts)) for level, title, anchor, texts in found]


def _plain(token: Token) -> str:
    if token.children is None:
        return token.content
    shown = (
        child.content if child.type in ("text", "code_inline") else " " * child.type.endswith("break")
        for child in token.children
    )
    return re.sub(r"\s+", " ", "".join(shown)).strip()


def _linked(tokens: list[Token], file: str) -> list[str]:
    """The files that links and pictures name; the tokens then lead to their places in the site."""
    files = []
    for token in (child for block in tokens for child in block.children or ()):
        attribute = {"link_open": "href", "image": "src"}.get(token.type)
        if attribute is None:
            continue
        target, _, anchor = str(token.attrGet(attribute)).partition("#")
        if ELSEWHERE.match(target):
            token.attrSet("rel", "noreferrer")
        elif target:
            files.append(posixpath.normpath(posixpath.join(posixpath.dirname(file), target)))
            token.attrSet(attribute, place(target) + (f"#{anchor}" if anchor else ""))
    return files


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def mark(text: object) -> str:
    """Markdown that shows a text as code, or nothing for an empty one."""
    return f"`{text}`" if str(text) else ""


def plain(text: str) -> str:
    """Markdown that shows a text as it stands, but for `code`, which our help and docstrings mark the same way."""
    pieces = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(
        piece if number % 2 else re.sub(r"([\\`*_{}\[\]<>#])", r"\\\1", piece) for number, piece in enumerate(pieces)
    )
