"""What every committed file keeps to: no leak of a machine or a registry, nothing unfinished, nothing that runs data as
code, no function or file too long to read.
"""

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jaxinfer", "kernels", "tests", "benchmarks", "configs", "docs", "scripts", ".ci")
GENERATED = {".safetensors", ".npz", ".png", ".svg", ".pyc", ".so", ".o", ".ipynb"}
MAX_FUNCTION_LINES, MAX_FILE_LINES = 60, 500

# spelt in pieces, so that this file does not name what it forbids
LEAK = re.compile(
    "/(" + "|".join(["work", "root", "farm", "home/[a-z]+"]) + r")/|python" + r"hosted\.|py" + r"pi\.o|npm" + "js"
)
UNFINISHED = re.compile(
    r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b|NotImplemented" + r"Error|pytest\.(mark\.)?(sk" + r"ip|xf" + "ail)"
)

DANGEROUS = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "torch.load",
    "yaml.load",
    "numpy.load",
    "importlib.util.spec_from_file_location",
    "runpy.run_path",
    "runpy.run_module",
    "jax.numpy.load",
    "pandas.read_pickle",
    "jax.experimental.serialize_executable.deserialize_and_load",
    "__import__",
}
# There is no harmless use of these here: importing one is the danger, under whatever name
FORBIDDEN_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib"}
# (file, call). Compiled steps come from a folder that is ours alone, owner and mode checked, contents by digest.
ALLOWED = {("jaxinfer/runtime/programs.py", "jax.experimental.serialize_executable.deserialize_and_load")}


def text_files() -> list[Path]:
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in sorted(files) if path.suffix not in GENERATED]


def python_files(*folders: str) -> list[Path]:
    return [path for path in text_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """To walk a tree takes longer than to read it."""
    return list(ast.walk(tree_of(path)))


def lines_matching(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1)
        if pattern.search(line)
    ]


def imports_of(nodes: list[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """(line, the name that it has here, its dotted name) of everything that is imported."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{node.module}.{alias.name}"


def calls_of(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every call, whatever it is imported as, `shell=True` counting as a call of that name."""
    dotted = {here: name for _, here, name in imports_of(nodes)}
    for node in nodes:
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            yield node.lineno, f"{dotted.get(first, first)}{dot}{rest}".removeprefix("builtins.")
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                    yield node.lineno, "shell=True"


def dangers_of(source: str, name: str) -> list[str]:
    """What a source does that could run data as code, one line each."""
    forbidden = DANGEROUS | {"shell=True"}
    nodes = list(ast.walk(ast.parse(source)))
    found = {(line, call) for line, call in calls_of(nodes) if call in forbidden}
    for line, _, whole in imports_of(nodes):
        if whole in forbidden or whole.partition(".")[0] in FORBIDDEN_MODULES:
            found.add((line, f"import {whole}"))
    for node in nodes:  # a name that is made at run time, or only looked up
        if isinstance(node, ast.Constant) and node.value in FORBIDDEN_MODULES:
            found.add((node.lineno, f"the name {node.value}"))
    return [f"{name}:{line}: {call}" for line, call in sorted(found) if (name, call) not in ALLOWED]


def test_no_file_names_a_machine_s_path_or_a_registry():
    assert lines_matching(LEAK, [path for path in text_files() if path.suffix != ".json"]) == []


def test_no_name_is_undefined():
    """Lint leaves the rule out, since letters of jaxtyping's shapes, which stand in strings, look like names."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "F821", "--ignore-noqa", "--output-format", "json"]
    folders = [ROOT / name for name in ("jaxinfer", "kernels", "tests", "benchmarks", "scripts")]
    config = ["--isolated", "--target-version", "py312"]
    done = subprocess.run([*command, *config, *folders], capture_output=True, text=True, check=False)
    undefined = []
    for found in json.loads(done.stdout):
        path, place = Path(found["filename"]), found["location"]
        line = path.read_text("utf-8").splitlines()[place["row"] - 1]
        if line[: place["column"] - 1].count('"') % 2 == 0:
            undefined.append(f"{path.relative_to(ROOT)}:{place['row']}: {found['message']}")
    assert undefined == []


def test_nothing_is_left_unfinished():
    assert lines_matching(UNFINISHED, python_files("jaxinfer", "kernels", "tests", "benchmarks")) == []


def test_nothing_runs_data_as_code():
    files = python_files("jaxinfer", "kernels", "benchmarks", "scripts")
    assert [danger for path in files for danger in dangers_of(path.read_text(), str(path.relative_to(ROOT)))] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "from pickle import loads",
        "import pickle as p\np.loads(b'')",
        "from marshal import load",
        "import marshal",
        "import dill",
        "import cloudpickle.cloudpickle as c",
        "def f():\n    from cloudpickle import load",
        "import importlib\nimportlib.import_module('dill')",
        "import numpy as n\nn.load('x')",
        "from numpy import load as read\nread('x')",
        "from yaml import load",
        "import builtins\nbuiltins.eval('1')",
        "from os import system as s",
        "import os as o\no.popen('ls')",
        "eval('1')",
        "def f():\n    exec('1')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.run('ls', shell=wanted)",
        "import torch\ntorch.load('x')",
    ],
)
def test_a_planted_danger_is_found(source):
    assert dangers_of(source, "planted.py")


def test_an_ordinary_call_is_no_danger():
    calls = "json.loads('1')", "numpy.loadtxt('x')", "model.eval()", "subprocess.run(['ls'], shell=False)"
    assert dangers_of("\n".join(["import json, numpy, subprocess", *calls]), "x.py") == []


def test_no_error_is_swallowed():
    swallowed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("jaxinfer", "kernels", "tests", "benchmarks")
        for node in nodes_of(path)
        if isinstance(node, ast.ExceptHandler) and all(isinstance(statement, ast.Pass) for statement in node.body)
    ]
    assert swallowed == []


def test_functions_fit_a_screen_or_nearly():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} ({lines})"
        for path in python_files("jaxinfer", "tests", "benchmarks")
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_files_have_one_subject():
    long = [
        f"{path.relative_to(ROOT)} ({lines})"
        for path in python_files("jaxinfer", "tests", "benchmarks")
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    ]
    assert long == []


def test_room_packages_import_nothing():
    """A package that imports on sight would make `jaxinfer --help` pay for jax."""
    lazy = {ROOT / "jaxinfer" / "__init__.py", ROOT / "jaxinfer" / "cli" / "__init__.py"}
    eager = [
        str(path.relative_to(ROOT))
        for path in python_files("jaxinfer", "kernels")
        if path.name == "__init__.py" and path not in lazy
        for node in tree_of(path).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert eager == []


def test_class_names_are_unique():
    """But for those of one file, which begin with an underscore: a name says which class is meant."""
    places: dict[str, list[str]] = {}
    for path in python_files("jaxinfer", "kernels"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
