"""What a stranger installs: the sdist, the wheel made of it, and that wheel in an environment with nothing else."""

import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.docs.reader import Reader, program, with_path
from tests.support.dockerfile import replay
from tests.support.fake_hub import running_hub
from tests.support.processes import serving

ROOT = Path(__file__).resolve().parents[1]
# What other pages have their reader type in the same environment, each with something that needs what it installed
AFTERWARDS = (
    "jaxinfer run --config demo-cpu 'What is 7 plus 5?' | grep '^7 + 5 = 12.$'",
    "pip install 'jaxinfer[notebook]'",
    "pip install 'jaxinfer[parquet]'",
    "jaxinfer batch -i questions.jsonl -o answers.parquet",
    "pip install 'jaxinfer[otel]'",
    "python -c 'import opentelemetry.exporter.otlp.proto.http.trace_exporter'",
    "pip check",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(autouse=True)
def nothing_is_compiled_to_install(monkeypatch):
    """As in scripts/install: Python compiles what is imported, when it is, not all of each environment's packages."""
    monkeypatch.setenv("PIP_COMPILE", "0")


def pinned(lock: Path) -> list[str]:
    return re.findall(r"^\S+==\S+", lock.read_text(), re.MULTILINE)


def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the sdist, as an installer does that has no wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    (built,) = folder.glob("*.whl")
    return built


def test_a_wheel_holds_all_that_is_tracked_of_its_packages_and_nothing_else(wheel):
    tracked = run("git", "ls-files", "jaxinfer", "kernels/jaxinfer_kernels", "configs", "docs/notebooks", cwd=ROOT)
    moved = {"kernels/": "", "configs/": "jaxinfer/configs/", "docs/": "jaxinfer/"}
    wanted = set()
    for name in tracked.splitlines():
        place = next((place for place in moved if name.startswith(place)), "")
        wanted.add(moved.get(place, "") + name.removeprefix(place))
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == wanted


def test_the_quick_start_can_be_followed_word_for_word_by_somebody_who_has_the_wheel_alone(
    wheel, tmp_path, executables
):
    """docs/quickstart.md from first to last: install, chat, serve, batch, Python, notebook, benchmark, each by one
    command, but that an environment is made for all and a file for the batch.
    """
    page = "docs/quickstart.md"
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(wheel, home)
    locks = [
        ROOT / "requirements.lock",
        *(ROOT / "tests" / "clients" / f"{name}.lock" for name in ("notebook", "pyarrow")),
    ]
    pins = map(pinned, locks)
    (tmp_path / "pins").write_text("\n".join({pin for lock in pins for pin in lock}))
    python = program(tmp_path / "bin", "python3", f'"{sys.executable}"')
    with running_hub() as hub:
        hub.folders = {"Qwen/Qwen3-0.6B": ROOT / "jaxinfer" / "demo" / "checkpoint"}
        environment = with_path(
            python.parent,
            PYTHONPATH="",
            PIP_CONSTRAINT=str(tmp_path / "pins"),
            JAX_PLATFORMS="cpu",
            JAXINFER_COMPILE_CACHE_DIR=str(executables),  # what other tests have compiled
            HF_ENDPOINT=hub.url,
            HF_HOME=str(tmp_path / "hub"),
        )
        reader = Reader(home, environment)
        try:
            for block in blocks(page):
                reader.reads(block)
            reader.leave()
            for command in AFTERWARDS:
                reader.does(command)
            (checkout,) = (wheel.parent / "source").iterdir()
            reader.does(f"(cd {checkout} && pip wheel --no-deps .)")
        finally:
            reader.kill()
    assert len((home / "answers.jsonl").read_text().splitlines()) == 2
    assert contents(checkout / wheel.name) == contents(wheel)
    assert {block.language for block in blocks(page)} == {"sh", "python"}


def test_the_dockerfile_is_what_its_linter_wants():
    """`make clients` puts the linter into .clients/hadolint."""
    run(ROOT / ".clients" / "hadolint" / "bin" / "hadolint", "Dockerfile", cwd=ROOT)


def test_the_steps_of_the_dockerfile_make_a_server_that_is_healthy_and_not_root_s(tmp_path):
    image = replay(ROOT / "Dockerfile", ROOT, tmp_path / "root")
    assert f"jaxinfer:x:{image.user}:" in (image.root / "etc" / "passwd").read_text()
    assert stat.S_IMODE((image.root / "cache").stat().st_mode) == 0o700
    entry = shutil.which(image.command[0], path=image.environment["PATH"])
    serve = f"import os; os.execv({entry!r}, {[*image.command, '--port', '0', '--serve-early']!r})"
    with serving(tmp_path / "log", "-c", serve, PYTHONPATH="", **image.environment) as (_, port):
        check = [word.replace(":8000/", f":{port}/") for word in image.health]
        assert subprocess.run(check, env=image.environment, timeout=30).returncode == 0
        unhealthy = [word.replace(":8000/", f":{port}/v1") for word in image.health]
        assert subprocess.run(unhealthy, env=image.environment, capture_output=True, timeout=30).returncode != 0
    assert list((image.root / "cache" / "jaxinfer").iterdir()), "what was compiled is in the volume"


# Says what it was asked, and fails as pip does where a file of requirements is not there
PIP = """
echo "$@" >>"{root}/asked"
while [ $# -gt 1 ]; do
    case $1 in -r) cat "$2" >/dev/null || exit 1 ;; esac
    shift
done
"""
OF_LOCK, OF_US = "install --no-deps --require-hashes -r {}", "install --no-deps --no-build-isolation ."


@pytest.mark.parametrize("cuda", ["", "cuda12", "cuda13"])
def test_the_dockerfile_s_argument_adds_the_lock_of_its_name_with_hashes(tmp_path, cuda):
    """What that lock names is not fetched: to check hashes, pip would take whole files in a dry run too: gigabytes."""
    image = replay(ROOT / "Dockerfile", ROOT, tmp_path / "root", given={"CUDA": cuda}, programs={"pip": PIP})
    locks = ["requirements-runtime.lock", *([f"requirements-{cuda}.lock"] if cuda else [])]
    assert (image.root / "asked").read_text().splitlines() == [*map(OF_LOCK.format, locks), OF_US]
    assert all((image.workdir / lock).read_bytes() == (ROOT / lock).read_bytes() for lock in locks)


def test_an_argument_that_is_no_lock_s_name_makes_no_image(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        replay(ROOT / "Dockerfile", ROOT, tmp_path / "root", given={"CUDA": "cuda11"}, programs={"pip": PIP})
    assert "requirements-cuda11.lock" in caught.value.stderr
