"""A diff in a page is a sketch, and true all the same: the files, lines and names that it speaks of are there, and with
its lines put in, each of those files still runs.
"""

import dataclasses
import enum
import importlib
import re
from typing import Any

import pytest

from tests.docs.pages import ROOT, Block, blocks, pages
from tests.kernels.attention.pages import HEADS

FILE = re.compile(r" # (\S+\.py)(?:\s+(.*))?")
CLASS = re.compile(r"\bclass (\w+)")
NAMED = re.compile(r"\b(?:class|def) \w+")


@dataclasses.dataclass
class Hunk:
    """path: of a file.    said: of where in it.    context, added: its lines."""

    path: str
    said: str
    context: list[str] = dataclasses.field(default_factory=list)
    added: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_new(self) -> bool:
        return not (ROOT / self.path).exists()


def hunks(block: Block) -> list[Hunk]:
    found: list[Hunk] = []
    for line in block.text.splitlines():
        if match := FILE.fullmatch(line):
            found.append(Hunk(match[1], match[2] or ""))
        else:
            assert found and line[:1] in (" ", "+"), f"{block.page}: {line!r} is of no file, or no line of a diff"
            (found[-1].added if line[0] == "+" else found[-1].context).append(line[1:])
    return found


def applied(hunk: Hunk) -> str:
    """The file with what is added behind the context, or at the end of each class that is named."""
    lines = (ROOT / hunk.path).read_text().splitlines()
    places = [re.escape(line) for line in hunk.context] or [rf"class {name}\b.*" for name in CLASS.findall(hunk.said)]
    assert places or not hunk.added, f"{hunk.path}: where does it go?"
    for place in places:
        at = [number for number, line in enumerate(lines) if re.fullmatch(place, line)]
        assert len(at) == 1, f"{hunk.path} has {place!r} {len(at)} times"
        after = at[0] + 1
        if not hunk.context:
            after = next((n for n, line in enumerate(lines) if n >= after and re.match(r"\S", line)), len(lines))
        lines[after:after] = hunk.added
    return "\n".join(lines) + "\n"


def run(path: str, text: str) -> dict[str, Any]:
    """What a module of this text has."""
    name = path.removeprefix("kernels/").removesuffix(".py").replace("/", ".")
    importlib.import_module(name)  # classes of the text look for their module
    namespace: dict[str, Any] = {"__name__": name, "__file__": str(ROOT / path)}
    exec(compile(text, path, "exec"), namespace)
    return namespace


def check(hunk: Hunk) -> None:
    text = (ROOT / hunk.path).read_text()
    for named in NAMED.findall(hunk.said):
        assert re.search(rf"^{named}\b", text, re.MULTILINE), f"{hunk.path} has no {named}"
    made = run(hunk.path, applied(hunk))
    for name in CLASS.findall(hunk.said):
        if issubclass(made[name], enum.Enum):
            assert len(list(made[name])) == len(made[name].__members__), f"{hunk.path}: two of {name} have one number"


SHOWN = [block for page in pages() for block in blocks(page) if block.language == "diff"]
HUNKS = [hunk for block in SHOWN for hunk in hunks(block)]


@pytest.mark.parametrize("hunk", [hunk for hunk in HUNKS if not hunk.is_new], ids=lambda hunk: hunk.path)
def test_what_a_diff_changes_is_there_and_runs_with_the_change(hunk):
    check(hunk)


def test_the_new_file_of_a_diff_is_a_test_that_passes():
    (hunk,) = (hunk for hunk in HUNKS if hunk.is_new)
    assert (ROOT / hunk.path).parent.is_dir() and not hunk.context
    namespace: dict[str, Any] = {"pytest": pytest, "example": abs, "example_reference": abs}
    exec("\n".join(hunk.added), namespace)
    (test,) = (value for name, value in namespace.items() if name.startswith("test_"))
    test(HEADS[0])


@pytest.mark.parametrize(
    "slip",
    [
        Hunk("jaxinfer/models/dense.py", "", ["TRAITZ = {"], ['    "Example": 1,']),
        Hunk("jaxinfer/models/dense.py", "", ["TRAITS = {"], ['    "Example": _Traits("example", bias=1),']),
        Hunk("jaxinfer/runtime/packing.py", "class SamplingColumn", [], ["    EXAMPLE = 6"]),
        Hunk("jaxinfer/runtime/sampler.py", "def kepped, and a line"),
    ],
    ids=["line", "call", "number", "name"],
)
def test_a_planted_slip_in_a_diff_is_found(slip):
    with pytest.raises((AssertionError, TypeError)):
        check(slip)
