"""The documentation as a site: it builds, its links lead somewhere, it loads nothing from elsewhere, and its reference
has everything that the code has.
"""

import ast
import dataclasses
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import click
import msgspec
import pytest

import jaxinfer.errors
from docs.site.http_reference import ROOMS, errors, http, metrics
from docs.site.markdown import place, render, slug
from docs.site.reference import MAKERS, command_line, decisions, settings
from jaxinfer.cli import VERBS
from jaxinfer.cli.options import OTHER_ENV
from jaxinfer.config import SETTINGS, EngineConfig
from jaxinfer.errors import JaxInferError
from jaxinfer.protocol import abort, anthropic, chat, completions, embeddings, open_responses, tokenize
from jaxinfer.protocol.sampling import SamplingParams
from tests.docs.pages import RECORDS, ROOT, flags, pages
from tests.server.fakes import FakeLLM
from tests.server.http import ask

OPENS = re.compile(r"[a-z]+:|//")
WIRES = (
    *(abort.AbortWire, anthropic.MessagesWire, anthropic.CountTokensWire, chat.ChatWire, completions.CompletionWire),
    *(embeddings.EmbeddingWire, embeddings.ScoreWire, open_responses.ResponseWire, tokenize.TokenizeWire),
    tokenize.DetokenizeWire,
)


def all_pages() -> list[str]:
    """With the records, which link too."""
    records = [path for name in RECORDS for path in ([ROOT / name] if "." in name else (ROOT / name).rglob("*.md"))]
    return sorted({*pages(), *(str(path.relative_to(ROOT)) for path in records)})


@pytest.mark.parametrize("page", all_pages())
def test_the_links_of_a_page_lead_to_files_and_headings_that_are_there(page):
    """Of the Markdown itself, as one reads it where it lies: no link leads to what is made only for the site."""
    rendered = render((ROOT / page).read_text(), page)
    for file in rendered.files:
        assert (ROOT / file).is_file(), f"{page} links to {file}"
    by_place = {place(file): file for file in rendered.files}
    for href in re.findall(r'href="([^"]*#[^"]*)"', rendered.html):
        target, _, anchor = href.partition("#")
        if not OPENS.match(href):
            there = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            file = by_place[there] if target else page
            source = (ROOT / file).read_text()
            anchors = {section.anchor for section in render(source, file).sections}
            assert anchor in anchors, f"{page} links to {file}#{anchor}"


@pytest.mark.parametrize("page", all_pages())
def test_every_row_of_a_page_is_in_a_table(page):
    assert "<p>|" not in render((ROOT / page).read_text(), page).html  # a blank line ends one


def test_every_setting_is_in_the_reference():
    page = settings()
    for field in dataclasses.fields(EngineConfig):
        assert f"`--{field.name.replace('_', '-')}`" in page and f"| `{field.name}` |" in page
    assert SETTINGS.keys() == {field.name for field in dataclasses.fields(EngineConfig)}


def test_every_verb_option_and_variable_is_in_the_reference():
    page = settings() + command_line()
    for verb in VERBS:
        assert f"## jaxinfer {verb}\n" in page
    missing = {flag for flag in flags() if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", page)}
    assert missing <= {"-h", "--help"}
    assert {name for name in OTHER_ENV if f"`{name}`" not in page and name not in page} == set()


def test_every_field_of_every_body_and_every_route_is_in_the_reference():
    page = http()
    for wire in (*WIRES, SamplingParams):
        names = {field.encode_name for field in msgspec.structs.fields(wire)} - {
            "detokenize",
            "form_field",
        }  # not of a body
        assert {name for name in names if f"`{name}`" not in page} == set()
    document = ask(FakeLLM(), "GET", "/openapi.json").json()
    for path, methods in document["paths"].items():
        assert all(f"## {method.upper()} {path}\n" in page for method in methods)
    for schema in document["components"]["schemas"].values():
        assert {name for name in schema["properties"] if f"`{name}`" not in page} == set()


@pytest.mark.slow
def test_every_metric_of_a_server_is_in_the_reference():
    page = metrics()
    named = set(re.findall(r"^# TYPE (\S+) ", ask(FakeLLM(), "GET", "/metrics").text, re.MULTILINE))
    assert named and {name for name in named if f"`{name}`" not in page} == set()


def test_every_code_status_and_kind_of_an_error_is_in_the_reference():
    page = errors()
    package = ROOT / "jaxinfer"
    text = "".join(path.read_text() for room in ROOMS for path in (package / room).rglob("*.py"))
    codes = set(re.findall(r'\bcode ?= ?"(\w+)"', text))
    for room in ("server", "llm", "engine"):  # what clients get and are told
        tests = "".join(path.read_text() for path in (ROOT / "tests" / room).glob("*.py"))
        codes |= set(re.findall(r'(?:\["code"\]|error\.code|output\.code) == "(\w+)"', tests))
    codes |= set(re.findall(r"(?:[45]\d\d|fails:) `(\w+)`", (ROOT / "docs" / "limits.md").read_text()))
    assert codes > {"queue_full", "non_finite", "invalid_grammar", "too_many_rows"}
    assert {code for code in codes if f"`{code}`" not in page} == set()
    assert {"`head_too_large` | 431", "`body_too_large` | 400, 413"} <= set(re.findall(r"`\w+` \| [\d, ]*\d", page))
    for error in vars(jaxinfer.errors).values():
        if isinstance(error, type) and issubclass(error, jaxinfer.errors.ApiError):
            assert f"| {error.status} | `{error.type}` | `{error.__name__}` |" in page


def exits(root: type[JaxInferError] = JaxInferError) -> Iterator[int]:
    if root.__module__.startswith("jaxinfer."):  # other tests make errors of their own
        yield root.exit_code
    for below in root.__subclasses__():
        yield from exits(below)


def test_every_exit_code_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    ending = ast.parse((ROOT / "jaxinfer" / "offline" / "tally.py").read_text())
    (had_errors,) = [
        node.value.value for node in ending.body if isinstance(node, ast.Assign) and node.targets[0].id == "HAD_ERRORS"
    ]
    assert list(map(int, rows)) == sorted({0, *exits(), click.UsageError.exit_code, had_errors, 130})
    named = re.findall(r"^\| (\d+) \| `(\w+)`: (.*) \|$", page, re.MULTILINE)
    for code, name, meaning in named:
        error = getattr(jaxinfer.errors, name)
        assert error.exit_code == int(code) and meaning.startswith(" ".join(error.__doc__.split()).rstrip("."))


def test_every_decision_is_listed():
    assert len(decisions().splitlines()) == len(list((ROOT / "docs" / "decisions").glob("[0-9]*.md")))


def test_a_page_that_is_made_names_a_maker_and_each_maker_has_its_page():
    named = [
        name
        for page in all_pages()
        for name in re.findall(r"^<!-- made by: (\w+) -->$", (ROOT / page).read_text(), re.M)
    ]
    assert sorted(named) == sorted(MAKERS)


def test_a_page_that_is_made_says_in_a_checkout_where_the_same_is_shown():
    for page in all_pages():
        text, made, _ = (ROOT / page).read_text().partition("<!-- made by: ")
        if made:
            shown = re.search(r"`(?:jaxinfer|python|/)|\]\((?:\.\./)+jaxinfer/\S+\.py\)|the files of this folder", text)
            assert "in a checkout" in text and shown, page


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("What you can rely on", "what-you-can-rely-on"),
        ("`jaxinfer ps`: who?", "jaxinfer-ps-who"),
        ("a_b-c, d", "a_b-c-d"),
    ],
)
def test_anchors_are_github_s(title, anchor):
    (section,) = render(f"# {title}\n", "x.md").sections
    assert section.anchor == anchor
    assert slug(title, [anchor, f"{anchor}-1"]).endswith("-2")


class Page(HTMLParser):
    """ids, links and what the browser would load, of one page; and tags that were not closed."""

    VOID = frozenset(("meta", "link", "input", "img", "br", "hr", "wbr"))

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if tag == "a" and "href" in given else []
        self.loads += [given[name] or "" for name in ("src", "srcset", "data", "poster", "action") if name in given]
        self.loads += [given["href"] or ""] if tag != "a" and "href" in given else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built by the command that `make site` runs."""
    out = tmp_path_factory.mktemp("site") / "out"
    done = subprocess.run(
        [sys.executable, "-m", "docs.site", out], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{out.as_uri()}/index.html" in done.stdout
    return out


@pytest.fixture(scope="module")
def built(site) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(site, built):
    for path, page in built.items():
        assert page.open == [] and len(set(page.ids)) == len(page.ids), path
        for href in page.links:
            if not OPENS.match(href):
                target, _, anchor = href.partition("#")
                there = (path.parent / unquote(target)).resolve() if target else path
                assert there.is_file(), f"{path} links to {href}"
                assert not anchor or anchor in built[there].ids, f"{path} links to {href}"


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere_and_everything_that_it_loads_is_there(site, built):
    for path, page in built.items():
        for name in page.loads:
            assert name.startswith(("data:image/", "data:,")) or (path.parent / name).resolve().is_relative_to(site)
            assert name.startswith("data:") or (path.parent / name).is_file(), f"{path} loads {name}"
    for asset in (site / "assets").iterdir():
        if asset.name != "search-index.js":  # whose texts may hold any address
            assert not re.search(r"https?:|//\w|url\(|@import", re.sub(r"^//.*$", "", asset.read_text(), flags=re.M)), (
                asset
            )


@pytest.mark.slow
def test_the_menu_the_search_and_the_notebooks_are_there(site, built):
    for page in pages():
        assert site / place(page) in built, page
        is_guide = page.startswith("docs/") and page.count("/") == 1 and page != "docs/README.md"
        assert not is_guide or place(page) in built[site / "index.html"].links, page
    index = (site / "assets" / "search-index.js").read_text()
    assert "max_num_batched_tokens" in index and "How a token is made" in index
    shown = (site / "docs" / "notebooks" / "1-first-steps.html").read_text()
    assert 'download href="1-first-steps.ipynb"' in shown and (site / "docs/notebooks/1-first-steps.ipynb").is_file()
    steps = (
        (site / "docs" / "how-it-works.html").read_text().partition('id="how-a-token-is-made"')[2].partition("<h2")[0]
    )
    (listed,) = re.findall(r"<ol>(.*?)</ol>", steps, re.DOTALL)
    assert listed.count("<li>") == 8 and all("<a " in step for step in listed.split("<li>")[1:])
