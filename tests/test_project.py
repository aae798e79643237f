"""The project's own files: what `make` says and installs on which machine, the locks, the presets, the version."""

import ast
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from jaxinfer.config import config_from_sources
from jaxinfer.version import __version__
from tests.conftest import LONG
from tests.support.attempts import assert_below, slowness

ROOT = Path(__file__).resolve().parents[1]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
CLIENT_LOCKS = sorted(ROOT.glob("tests/clients/*.lock"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = re.compile(r"([a-z0-9][a-z0-9.-]*)==([^ ;]+)( ; [^\\]+)? \\")
# The first versions in which what a client's request or a user's file could reach was mended, by advisory
MENDED = {
    "jinja2": "3.1.6",  # CVE-2025-27516: a template leaves the sandbox
    "pyarrow": "23.0.1",  # CVE-2026-25087: memory used after it was freed, in a file that is read
    "python-multipart": "0.0.32",  # nine advisories, of versions to 0.0.31
    "starlette": "1.3.1",  # CVE-2026-48710 and four later: a Host that passes for a path, forms without limits
}
# What jax and flax ask for and requirements-runtime.lock leaves out, 185 MB: package and module
LEFT_OUT = {"scipy": "scipy", "tensorstore": "tensorstore", "orbax-checkpoint": "orbax"}
IMPORT_ALL = f"""
import importlib, pkgutil, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(LEFT_OUT.values())}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import jaxinfer, jaxinfer_kernels
for package in (jaxinfer, jaxinfer_kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def pins(lock: Path) -> dict[str, str]:
    return {match[1]: match[2] for line in lock.read_text().splitlines() if (match := PINNED.fullmatch(line))}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("lock", LOCKS + CLIENT_LOCKS, ids=lambda path: path.name)
def test_a_lock_holds_versions_and_hashes_and_nothing_else(lock):
    hashed: dict[str, int] = {}
    for line in lock.read_text().splitlines():
        if match := PINNED.fullmatch(line):
            hashed[match[1]] = 0
        elif not line.startswith("#"):
            assert HASH.fullmatch(line), line
            hashed[list(hashed)[-1]] += 1
    assert hashed and min(hashed.values()) >= 1
    assert "://" not in lock.read_text()


def test_the_lock_pins_jax_and_covers_every_dependency():
    locked = pins(ROOT / "requirements.lock")
    assert (locked["jax"], locked["jaxlib"]) == ("0.11.2", "0.11.2")
    wanted = names(PYPROJECT["project"]["dependencies"]) | names(PYPROJECT["dependency-groups"]["dev"])
    assert wanted <= set(locked)


@pytest.mark.parametrize("name", MENDED)
def test_no_version_with_a_known_hole_can_be_installed_beside_us(name):
    project, groups = PYPROJECT["project"], PYPROJECT["dependency-groups"]
    lists = (project["dependencies"], *project["optional-dependencies"].values(), *groups.values())
    named = [spec for spec in map(Requirement, (line for found in lists for line in found)) if spec.name == name]
    assert named
    for spec in named:
        floors = [Version(part.version) for part in spec.specifier if part.operator == ">="]
        assert floors and min(floors) >= Version(MENDED[name]), f"{spec} lets in what {MENDED[name]} mended"
    locked = [pins(lock)[name] for lock in LOCKS + CLIENT_LOCKS if name in pins(lock)]
    assert locked and min(map(Version, locked)) >= Version(MENDED[name])


def test_the_runtime_lock_is_the_part_of_the_lock_without_test_tools():
    locked, runtime = pins(ROOT / "requirements.lock"), pins(ROOT / "requirements-runtime.lock")
    assert runtime.items() <= locked.items()
    assert {name.lower().replace("_", "-") for name in names(PYPROJECT["project"]["dependencies"])} <= set(runtime)
    tools = {"mypy", "pytest", "hypothesis", "schemathesis", "ruff", "openai", "beartype", "pytest-xdist"}
    assert tools <= set(locked) and not tools & set(runtime)
    assert set(LEFT_OUT) <= set(locked) and not set(LEFT_OUT) & set(runtime)


@pytest.mark.slow
def test_no_module_of_ours_imports_what_the_runtime_lock_leaves_out():
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", IMPORT_ALL], env=environment, check=True)


def needed_by(requirement: Requirement) -> list[Requirement]:
    """What the installed version asks for on this machine, with the extras that were asked of it."""
    extras = ["", *requirement.extras]
    found = map(Requirement, metadata.requires(requirement.name) or [])
    return [need for need in found if not need.marker or any(need.marker.evaluate({"extra": x}) for x in extras)]


def test_the_runtime_lock_has_all_that_its_packages_import():
    """pip installs it with --no-deps in the image; zipp, which etils[epath] asks for, was not in it."""
    locked, seen = pins(ROOT / "requirements-runtime.lock"), set()
    wanted = [*map(Requirement, PYPROJECT["project"]["dependencies"])]
    while wanted:
        requirement = wanted.pop()
        if str(requirement) not in seen:
            seen.add(str(requirement))
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            assert name in locked or name in LEFT_OUT, requirement
            wanted += [] if name in LEFT_OUT else needed_by(requirement)
    assert len(seen) > 30


def test_every_client_group_is_locked_and_npm_s_names_no_place():
    groups = {name for name in PYPROJECT["dependency-groups"] if name.startswith("client-")}
    assert {f"client-{lock.stem}" for lock in CLIENT_LOCKS} == groups
    for folder in ("tests/clients", "jaxinfer/server/web/vendor"):
        text = (ROOT / folder / "package-lock.json").read_text()
        assert "sha512-" in text and "://" not in text


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_the_cuda_locks_only_add_to_it(extra):
    added = pins(ROOT / f"requirements-{extra}.lock")
    assert added[f"jax-{extra}-plugin"] == "0.11.2"
    assert not set(added) & set(pins(ROOT / "requirements.lock"))


def test_every_package_that_is_imported_is_a_dependency():
    declared = {name.replace("-", "_") for name in names(PYPROJECT["project"]["dependencies"])}
    known = declared | {"jaxinfer", "jaxinfer_kernels"} | sys.stdlib_module_names
    development = {name.replace("-", "_") for name in names(PYPROJECT["dependency-groups"]["dev"])}
    optional = {  # the extras otel and parquet
        ROOT / "jaxinfer" / "server" / "tracing.py": {"opentelemetry"},
        ROOT / "jaxinfer" / "offline" / "parquet.py": {"pyarrow"},
    }
    missing = set()
    for path in [*(ROOT / "jaxinfer").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]:
        allowed = known | optional.get(path, set())
        allowed |= development if path.is_relative_to(ROOT / "jaxinfer" / "demo") else set()
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            missing |= {(path.name, module) for module in modules if module.split(".")[0] not in allowed}
    assert not missing


def test_the_version_stands_in_one_place():
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "jaxinfer/version.py"
    elsewhere = [path for path in (ROOT / "jaxinfer").rglob("*.py") if f'"{__version__}"' in path.read_text()]
    assert elsewhere == [ROOT / "jaxinfer" / "version.py"]
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_importing_jaxinfer_takes_less_than_50_ms_and_brings_no_jax():
    code = (
        "import sys, time; began = time.process_time(); import jaxinfer; took = time.process_time() - began\n"
        "assert not {'jax', 'numpy', 'msgspec'} & sys.modules.keys(); print(took)"
    )

    def measured_s() -> float:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
        return float(done.stdout) / slowness()

    assert_below(0.05, measured_s, "processor seconds of `import jaxinfer`")


@pytest.mark.parametrize("preset", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_a_preset_holds_settings_and_names_its_model(preset):
    assert "model" in config_from_sources(str(preset)).sources


@pytest.mark.parametrize("page", ["README.md", "jaxinfer/README.md", "docs/suites.md"])
def test_the_pages_link_to_files_that_exist(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert links
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


class Machine:
    """A checkout on a machine whose programs are all scripts of ours; uv writes down what it was asked to install."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.bin, self.log = folder / "checkout", folder / "bin", folder / "log"
        (self.checkout / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for name in ("Makefile", "pyproject.toml", "scripts/install", *(lock.name for lock in LOCKS)):
            shutil.copy(ROOT / name, self.checkout / name)
        for tool in ("sh", "touch", "head", "mkdir"):
            (self.bin / tool).symlink_to(shutil.which(tool) or "")

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def python(self, name: str, version: str) -> None:
        self.program(name, f"printf %s {version}")

    def uv(self) -> None:
        make_venv = (
            f'[ "$1" = venv ] && {{ mkdir -p .venv/bin && touch .venv/bin/jaxinfer; }}; echo "$@" >>{self.log}; exit 0'
        )
        self.program("uv", f'[ "$1" = python ] && exit 1; {make_venv}')

    def make(self, *targets: str, **variables: str) -> subprocess.CompletedProcess[str]:
        program = shutil.which("make") or "make"
        env = {"PATH": str(self.bin), "HOME": str(self.checkout)} | variables
        return subprocess.run([program, *targets], cwd=self.checkout, env=env, capture_output=True, text=True)

    @property
    def installed(self) -> str:
        return self.log.read_text()


STAMP = ".venv/.installed"


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("target", ["serve", "test"])
def test_make_stops_at_once_with_the_cure_when_no_python_is_new_enough(machine, target):
    machine.python("python3", "3.11.2")
    machine.program("python3.12", "echo 'no such version' >&2; exit 127")  # a version manager's shim

    def seconds() -> float:
        began = time.monotonic()
        machine.make(target)
        return time.monotonic() - began

    assert_below(1.0, seconds, "seconds until make stops")
    done = machine.make(target)
    assert done.returncode != 0
    assert done.stderr.startswith("error: jaxinfer needs Python 3.12 or later, found 3.11.2; install one (")
    assert not (machine.checkout / ".venv").exists()


UV_ON_DEBIAN = 'apt-get install pipx && pipx install uv && export PATH="$HOME/.local/bin:$PATH"'


def test_debian_12_is_told_how_to_get_uv_by_the_same_words_everywhere(machine):
    """Its pipx is a package of its own, and puts uv into a folder that is not on the PATH."""
    machine.python("python3", "3.11.2")
    told = machine.make("test").stderr
    assert f"(Debian 12: {UV_ON_DEBIAN} && uv python install 3.12; " in told
    assert told.count("\n") <= 2, "a line, and make's own"
    for page in ("README.md", "docs/quickstart.md"):
        assert f"`{UV_ON_DEBIAN}`" in " ".join((ROOT / page).read_text().split())
    machine.program("uv", "exit 2")  # there, and without a Python that is new enough
    assert "found 3.11.2; install one (uv python install 3.12) and run make again" in machine.make("test").stderr


def test_make_says_none_when_there_is_no_python_at_all(machine):
    assert "found none; install one" in machine.make("test").stderr


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3.12": "3.12.1", "python3.13": "3.13.0"}, "python3.12"),
        ({"python3.13": "3.13.0", "python3": "3.9.1"}, "python3.13"),
        ({"python3.14": "3.14.0"}, "python3.14"),
        ({"python3": "3.15.2"}, "python3"),
    ],
)
def test_make_takes_the_first_python_that_is_new_enough(machine, pythons, chosen):
    for name, version in pythons.items():
        machine.python(name, version)
    machine.uv()
    assert machine.make(STAMP).returncode == 0
    assert f"--python {chosen} .venv" in machine.installed.splitlines()[0]
    assert "--require-hashes -r requirements.lock" in machine.installed


def test_python_keeps_what_it_compiles_whatever_the_environment_says(machine):
    """A process of the tests that compiles all that it imports takes seconds longer to start."""
    (machine.checkout / ".venv" / "bin").mkdir(parents=True)
    machine.program("python", 'echo "[$PYTHONDONTWRITEBYTECODE]"')
    shutil.copy(machine.bin / "python", machine.checkout / ".venv" / "bin" / "python")
    (machine.checkout / STAMP).touch()
    assert machine.make("test", PYTHONDONTWRITEBYTECODE="1").stdout == "[]\n"


def test_the_tests_that_go_first_exist():
    assert [name for name in LONG if not (ROOT / "tests" / name).exists()] == []


def test_without_uv_a_python_without_venv_gets_its_cure(machine):
    machine.program("python3", 'case "$2" in *version_info*) printf 3.12.1;; *) exit 1;; esac')
    done = machine.make("test")
    assert "Python needs its venv module, Python 3.12.1 has none; install it (" in done.stderr


@pytest.mark.parametrize(
    ("nvidia_smi", "extra"),
    [
        (None, None),
        ("exit 9", None),
        ("echo 'No devices were found'", None),
        ("echo 580.65.06", "cuda13"),
        ("echo 575.10; echo 575.10", "cuda12"),
    ],
)
def test_a_machine_with_an_nvidia_driver_gets_the_packages_that_fit_it(machine, nvidia_smi, extra):
    machine.python("python3", "3.12.1")
    machine.uv()
    if nvidia_smi is not None:
        machine.program("nvidia-smi", nvidia_smi)
    assert machine.make(STAMP).returncode == 0
    assert re.findall(r"requirements-(\w+)\.lock", machine.installed) == ([extra] if extra else [])


def test_a_server_needs_no_test_tools_and_an_environment_that_has_them_keeps_them(machine):
    machine.python("python3", "3.12.1")
    machine.uv()

    def locks_after(target: str) -> list[str]:
        assert machine.make(target).returncode == 0
        return re.findall(r"requirements\S*\.lock", machine.installed)

    core = ["requirements-runtime.lock"]
    assert locks_after("install") == locks_after("install") == core
    next_step = machine.make("install").stdout.strip().rpartition("next: ")[2]
    assert next_step == ". .venv/bin/activate && jaxinfer run demo 'What is 7 plus 5?'", "as README goes on"
    both = locks_after(STAMP)
    assert both == [*core, "requirements.lock"]
    (machine.checkout / ".venv" / ".core").unlink()
    assert locks_after("install") == both


def test_the_second_make_installs_nothing(machine):
    machine.python("python3", "3.12.1")
    machine.uv()
    machine.make(STAMP)
    installed = machine.installed
    assert machine.make(STAMP).returncode == 0
    assert machine.installed == installed
    later = time.time() + 5
    os.utime(machine.checkout / "requirements.lock", (later, later))
    machine.make(STAMP)
    assert machine.installed != installed
