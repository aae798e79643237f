"""Imports point one way: every file's syntax tree is held against the arrows of docs/design.md, section 1.

The tree is read, not imported, so a lazy import inside a function counts like any other.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# open to all, and importing only each other
OPEN = {"jaxinfer.children", "jaxinfer.config", "jaxinfer.errors", "jaxinfer.files", "jaxinfer.version"}
# the programs that made the bundled checkpoint and measure it; no room imports the demo, so they may jit what they like
TRAINING = {"jaxinfer.demo.train", "jaxinfer.demo.decode"}
LLM_AND_BELOW = {
    "jaxinfer.llm",
    "jaxinfer.engine",
    "jaxinfer.runtime",
    "jaxinfer.cache",
    "jaxinfer.checkpoint",
    "jaxinfer.layers",
    "jaxinfer.models",
    "jaxinfer_kernels",
}

# room: our own rooms that it may import. The longest matching name decides. A new arrow is a design decision.
MAY_IMPORT: dict[str, set[str]] = {
    "jaxinfer_kernels": set(),
    "jaxinfer": {"jaxinfer.llm", "jaxinfer.protocol"},  # the package itself: its lazy names
    "jaxinfer.__main__": {"jaxinfer.cli", "jaxinfer.engine"},
    "jaxinfer.children": OPEN,
    "jaxinfer.config": OPEN,
    "jaxinfer.errors": OPEN,
    "jaxinfer.files": OPEN,
    "jaxinfer.version": OPEN,
    "jaxinfer.cache": set(),
    "jaxinfer.layers": {"jaxinfer.cache", "jaxinfer_kernels"},
    "jaxinfer.layers.spec": {"jaxinfer.cache.spec"},
    "jaxinfer.models": {"jaxinfer.cache", "jaxinfer.layers", "jaxinfer_kernels"},
    "jaxinfer.checkpoint": {"jaxinfer.models"},
    "jaxinfer.runtime": {
        "jaxinfer.cache",
        "jaxinfer.checkpoint",
        "jaxinfer.layers",
        "jaxinfer.models",
        "jaxinfer_kernels",
    },
    "jaxinfer.runtime.mask_table": set(),
    "jaxinfer.runtime.plan": {"jaxinfer.runtime.mask_table"},
    "jaxinfer.text": set(),
    "jaxinfer.protocol": {"jaxinfer.text"},
    "jaxinfer.engine": {"jaxinfer.cache", "jaxinfer.runtime", "jaxinfer.text"},
    "jaxinfer.engine.scheduler": {"jaxinfer.cache", "jaxinfer.engine", "jaxinfer.runtime.plan"},
    "jaxinfer.testing": {"jaxinfer.runtime.mask_table", "jaxinfer.runtime.plan"},
    "jaxinfer.llm": LLM_AND_BELOW | {"jaxinfer.protocol", "jaxinfer.text"},
    # LLM.generate_file is a batch over its own engine: the one arrow up
    "jaxinfer.llm.llm": LLM_AND_BELOW | {"jaxinfer.offline", "jaxinfer.protocol", "jaxinfer.text"},
    "jaxinfer.server": {"jaxinfer.llm", "jaxinfer.offline", "jaxinfer.protocol", "jaxinfer.text"},
    "jaxinfer.offline": {"jaxinfer.llm", "jaxinfer.protocol", "jaxinfer.text"},
    "jaxinfer.bench": LLM_AND_BELOW | {"jaxinfer.protocol"},
    "jaxinfer.cli": LLM_AND_BELOW
    | {"jaxinfer", "jaxinfer.bench", "jaxinfer.server", "jaxinfer.offline", "jaxinfer.protocol", "jaxinfer.text"},
    "jaxinfer.demo": {"jaxinfer.layers", "jaxinfer.models", "jaxinfer.text"},
}

# These never import jax, nor what brings it in.
NO_JAX = {
    "jaxinfer",
    "jaxinfer.bench.chart",
    "jaxinfer.bench.client",
    "jaxinfer.bench.compare",
    "jaxinfer.bench.http_client",
    "jaxinfer.bench.load",
    "jaxinfer.bench.mock_server",
    "jaxinfer.bench.page",
    "jaxinfer.bench.program",
    "jaxinfer.bench.report",
    "jaxinfer.bench.serve",
    "jaxinfer.cache",
    "jaxinfer.__main__",
    "jaxinfer.children",
    "jaxinfer.cli",
    "jaxinfer.config",
    "jaxinfer.errors",
    "jaxinfer.files",
    "jaxinfer.version",
    "jaxinfer.engine",
    "jaxinfer.layers.spec",
    "jaxinfer.llm",
    "jaxinfer.offline",
    "jaxinfer.protocol",
    "jaxinfer.runtime.mask_table",
    "jaxinfer.runtime.plan",
    "jaxinfer.server",
    "jaxinfer.testing",
    "jaxinfer.text",
}
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}

# bench: chains of kernels and the device's own limits, nothing that serves
MAY_JIT = {
    "jaxinfer.runtime",
    "jaxinfer_kernels",
    "jaxinfer.checkpoint",
    "jaxinfer.bench.kernels",
    "jaxinfer.bench.kernels_cpu",
    "jaxinfer.bench.limits",
}


def module_name(path: Path) -> str:
    """The dotted name of a file under jaxinfer/ or kernels/."""
    parts = list(path.with_suffix("").parts)
    if parts[0] == "kernels":
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str, rooms: set[str]) -> str | None:
    """The longest name of `rooms` that is `module` or a package above it; the bare package matches only itself."""
    matches = [room for room in rooms if module == room or (room != "jaxinfer" and module.startswith(room + "."))]
    return max(matches, key=len, default=None)


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; `from a import b` gives a.b, since b may be a module."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def jits(tree: ast.AST) -> Iterator[int]:
    """The lines that name jax.jit."""
    for node in ast.walk(tree):
        attribute = isinstance(node, ast.Attribute) and node.attr == "jit"
        name = isinstance(node, ast.ImportFrom) and node.module == "jax" and any(a.name == "jit" for a in node.names)
        if attribute or name:
            yield node.lineno


def faults_of(module: str, source: str, is_package: bool = False) -> list[str]:
    """What a module's source does against the arrows, one line each."""
    tree = ast.parse(source)
    room = room_of(module, set(MAY_IMPORT))
    if room is None:
        return [f"{module}: no room of MAY_IMPORT holds this file"]
    allowed = MAY_IMPORT[room] | (OPEN if room != "jaxinfer_kernels" else set())
    faults = []
    for line, name in imported(tree, module, is_package):
        if name.split(".")[0] in {"jaxinfer", "jaxinfer_kernels"}:
            own = room_of(name, {room}) is not None and room != "jaxinfer"
            if not own and room_of(name, allowed) is None and name.rpartition(".")[0] not in allowed:
                faults.append(f"{module}:{line}: {room} may not import {name}")
        elif name.split(".")[0] in JAX and room_of(module, NO_JAX) is not None:
            faults.append(f"{module}:{line}: {room} may not import jax")
    if room_of(module, MAY_JIT) is None and module not in TRAINING:
        faults += [
            f"{module}:{line}: jax.jit belongs to the runtime, the kernels and the checkpoint" for line in jits(tree)
        ]
    return faults


def our_files() -> list[Path]:
    return sorted(path for top in ("jaxinfer", "kernels") for path in (ROOT / top).rglob("*.py"))


def test_every_import_follows_the_arrows():
    faults = []
    for path in our_files():
        relative = path.relative_to(ROOT)
        faults += faults_of(module_name(relative), path.read_text(), path.name == "__init__.py")
    assert not faults, "\n".join(faults)


def test_the_files_are_found():
    names = {module_name(path.relative_to(ROOT)) for path in our_files()}
    assert {"jaxinfer.config", "jaxinfer.engine", "jaxinfer.runtime.plan"} <= names
    assert len(names) > 15


@pytest.mark.parametrize(
    ("module", "source"),
    [
        pytest.param("jaxinfer.models.dense", "from jaxinfer.runtime.runner import DeviceRunner", id="upward"),
        pytest.param("jaxinfer.models.dense", "def f():\n    import jaxinfer.llm", id="upward, lazily"),
        pytest.param("jaxinfer.models.dense", "from ..engine import pages", id="upward, relative"),
        pytest.param("jaxinfer.models.dense", "from jaxinfer import engine", id="upward, from the package"),
        pytest.param("jaxinfer.models.dense", "import jaxinfer", id="the package itself"),
        pytest.param("jaxinfer.server.app", "from jaxinfer.bench import report", id="sideways"),
        pytest.param("jaxinfer.cache.pool", "from jaxinfer.engine import scheduler", id="up from the cache"),
        pytest.param(
            "jaxinfer_kernels.linear.xla", "from jaxinfer.errors import ConfigError", id="kernels import ours"
        ),
        pytest.param("jaxinfer.server.app", "import jax", id="jax in the server"),
        pytest.param("jaxinfer.engine.scheduler", "def f():\n    from jax import numpy", id="jax in the scheduler"),
        pytest.param("jaxinfer.text.tokenizer", "from flax import struct", id="what brings jax in"),
        pytest.param("jaxinfer.models.dense", "import jax\nf = jax.jit(lambda x: x)", id="jit in a model"),
        pytest.param("jaxinfer.models.dense", "from jax import jit", id="jit by name"),
        pytest.param("jaxinfer.demo.generate", "import jax\nf = jax.jit(lambda x: x)", id="jit beside the training"),
        pytest.param("jaxinfer.llm.build", "from jaxinfer.demo import corpus", id="the demo's programs"),
        pytest.param("jaxinfer.llm.llm", "from jaxinfer.bench import report", id="the benchmarks from below"),
        pytest.param("jaxinfer.bench.latency", "import jax\nf = jax.jit(lambda x: x)", id="jit in a benchmark"),
        pytest.param("jaxinfer.bench.serve", "from jax import numpy", id="jax in the load client"),
        pytest.param("jaxinfer.newroom.x", "", id="a room without arrows"),
    ],
)
def test_a_planted_fault_is_caught(module, source):
    assert len(faults_of(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jaxinfer.cli.serve", "def f():\n    from jaxinfer.server.app import create_app"),
        (
            "jaxinfer.engine.engine",
            "from jaxinfer.engine.scheduler import Scheduler\nfrom jaxinfer.runtime.plan import Plan",
        ),
        ("jaxinfer.runtime.step", "import jax\nfrom jaxinfer.errors import DeviceError\nf = jax.jit(lambda x: x)"),
        (
            "jaxinfer.models.dense",
            "from jaxinfer_kernels import sm90\nfrom jaxinfer_kernels.linear.api import linear",
        ),
        ("jaxinfer.demo.train", "import jax\nf = jax.jit(lambda x: x)"),
    ],
)
def test_what_the_arrows_allow_is_left_alone(module, source):
    assert faults_of(module, source) == []


def evaluated_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that importing a module runs: bodies of functions are not among them, their defaults are."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef):
            inside = [*child.decorator_list, *child.args.defaults, *filter(None, child.args.kw_defaults)]
            inside += [one.annotation for one in ast.walk(child.args) if isinstance(one, ast.arg) and one.annotation]
            inside += [child.returns] if child.returns else []
        else:
            inside = [child] if not isinstance(child, ast.Lambda) else []
        for one in inside:
            yield one
            yield from evaluated_at_import(one)


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.py")), ids=lambda path: path.stem)
def test_a_machine_without_a_hopper_gpu_does_not_import_mosaic(path):
    """It takes most of a second. `plgpu` imports it at its first use, which must be inside a function."""
    found = list(evaluated_at_import(ast.parse(path.read_text("utf-8"))))
    names = [alias.name for node in found if isinstance(node, ast.ImportFrom | ast.Import) for alias in node.names]
    assert not [name for name in names if "mosaic_gpu" in name]
    used = [node.attr for node in found if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "plgpu"]
    assert used == []
