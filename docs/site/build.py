"""The site: the pages of docs/, all that they link to here, and the reference, as files that need no server."""

import dataclasses
import functools
import json
import posixpath
import re
import shutil
import subprocess
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pygments.formatters import HtmlFormatter

from docs.site.markdown import Rendered, code, place, render
from docs.site.notebooks import render_notebook
from docs.site.reference import MAKERS
from jaxinfer.version import __version__

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
MADE = re.compile(r"^<!-- made by: (\w+) -->$", re.MULTILINE)
GUIDE = re.compile(r"docs/[^/]+\.md")
PICTURES = (".png", ".svg")

# (heading, ((title, page), ...)), in the order of the menu. A page of docs/ itself that is not here is added to GUIDES;
# others are reached by links.
GUIDES = "Guides"
MENU = (
    (
        "Start",
        (
            ("About", "README.md"),
            ("Quick start", "docs/quickstart.md"),
            ("Coming from other engines", "docs/coming-from.md"),
            ("How it works", "docs/how-it-works.md"),
            ("Questions", "docs/faq.md"),
            ("Features", "docs/features.md"),
            ("Promises", "docs/promises.md"),
            ("Performance", "docs/performance.md"),
        ),
    ),
    (
        GUIDES,
        (
            ("The server", "jaxinfer/server/README.md"),
            ("Batches", "docs/batch.md"),
            ("Notebooks", "docs/notebooks/README.md"),
            ("GPUs", "docs/gpu.md"),
            ("Warm-up and caches", "docs/warm-up.md"),
            ("Containers, Kubernetes", "docs/deploy/README.md"),
            ("Security and limits", "docs/limits.md"),
            ("Clients of Ollama's API", "docs/ollama.md"),
            ("Observability", "docs/observability.md"),
            ("Benchmarking", "docs/benchmarking.md"),
            ("Suites, comparisons, clients", "docs/suites.md"),
            ("Adding a model", "docs/adding-a-model.md"),
            ("Adding a kernel", "docs/adding-a-kernel.md"),
            ("Adding a sampling parameter", "docs/adding-a-sampling-parameter.md"),
            ("Testing", "docs/testing.md"),
        ),
    ),
    (
        "Reference",
        (
            ("Settings", "docs/reference/settings.md"),
            ("Command line", "docs/reference/command-line.md"),
            ("HTTP API", "docs/reference/http.md"),
            ("Errors", "docs/reference/errors.md"),
            ("Exit codes", "docs/reference/exit-codes.md"),
            ("Metrics", "docs/reference/metrics.md"),
            ("Python", "docs/reference/python.md"),
        ),
    ),
    (
        "Inside",
        (
            ("Design", "docs/design.md"),
            ("Decisions", "docs/decisions/README.md"),
            ("The rooms", "jaxinfer/README.md"),
            ("The device", "jaxinfer/runtime/README.md"),
            ("The demo model", "jaxinfer/demo/README.md"),
            ("Benchmark journal", "benchmarks/README.md"),
            ("Changes", "CHANGELOG.md"),
        ),
    ),
)


@dataclasses.dataclass(frozen=True)
class Page:
    """One file of the repository as a page. title: for the browser and the search."""

    file: str
    title: str
    rendered: Rendered


def build(out: Path) -> int:
    """Write the site to a folder, which is emptied first, and return how many pages it has.

    Raises FileNotFoundError when a link names a file that the repository does not track.
    """
    shutil.rmtree(out, ignore_errors=True)
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard")
    tracked = frozenset(name for name in listed if (ROOT / name).is_file())  # git lists what was just deleted too
    waiting = [page.partition("#")[0] for _, entries in MENU for _, page in entries]
    waiting += sorted(name for name in tracked if name.startswith("docs/") and name.endswith((".md", ".ipynb")))
    pages: dict[str, Page] = {}
    while waiting:
        file = waiting.pop(0)
        if file in pages:
            continue
        if file not in tracked:
            raise FileNotFoundError(f"a page links to {file}, which is no file of the repository")
        if file.endswith(PICTURES):
            _copy(file, out)
        else:
            pages[file] = _page(file)
            waiting += pages[file].rendered.files
    menu = _menu(list(pages.values()))
    for page in pages.values():
        _write(out / place(page.file), _html(page, menu))
        if page.file.endswith(".ipynb"):
            _copy(page.file, out)
    _write_assets(out / "assets", list(pages.values()))
    return len(pages)


def _page(file: str) -> Page:
    source = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".ipynb"):
        rendered = render_notebook(source, file)
        note = f'<p class="quiet"><a download href="{posixpath.basename(file)}">Save this notebook</a> to run it.</p>'
        rendered = dataclasses.replace(rendered, html=note + rendered.html)
    elif file.endswith(".md"):
        rendered = render(MADE.sub(lambda match: MAKERS[match[1]](), source), file)
    else:
        return Page(file, file, Rendered(f"<h1>{file}</h1>{code(source, file)}", (), ()))
    return Page(file, next((section.title for section in rendered.sections), file), rendered)


Menu = list[tuple[str, list[tuple[str, str]]]]


def _menu(pages: list[Page]) -> Menu:
    """MENU, and the guides that it does not know."""
    known = {page for _, entries in MENU for _, page in entries} | {"docs/README.md"}
    new = [(page.title, page.file) for page in pages if GUIDE.fullmatch(page.file) and page.file not in known]
    return [(heading, [*entries, *(new if heading == GUIDES else [])]) for heading, entries in MENU]


def _html(page: Page, menu: Menu) -> str:
    root = "../" * page.file.count("/")
    shown = [
        (heading, [(title, root + _target(target), target == page.file) for title, target in entries])
        for heading, entries in menu
    ]
    contents = [section for section in page.rendered.sections if section.level == 2]
    return _template().render(
        title=page.title,
        body=page.rendered.html,
        contents=contents if len(contents) > 1 else [],
        menu=shown,
        root=root,
        version=__version__,
    )


def _target(page: str) -> str:
    file, _, anchor = page.partition("#")
    return place(file) + (f"#{anchor}" if anchor else "")


@functools.cache
def _template() -> "Environment":
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html")


def _write_assets(folder: Path, pages: list[Page]) -> None:
    light = HtmlFormatter(style="default").get_style_defs("code")
    dark = HtmlFormatter(style="github-dark").get_style_defs("code")
    colours = f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
    _write(folder / "site.css", colours + (HERE / "site.css").read_text())
    _write(folder / "site.js", (HERE / "site.js").read_text())
    entries = [
        [f"{place(page.file)}#{section.anchor}", page.title, section.title, section.text]
        for page in pages
        for section in page.rendered.sections
    ]
    # a script, since a page from a file may load one and may not read another file
    _write(folder / "search-index.js", f"const SEARCH_INDEX = {json.dumps(entries, ensure_ascii=False)};\n")


def _copy(file: str, out: Path) -> None:
    (out / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / file, out / file)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()
