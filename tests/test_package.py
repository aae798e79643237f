"""What a stranger installs: the sdist, the wheel made of it, and that wheel in an environment with nothing else."""

import re
import shutil
import stat
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import httpx2
import pytest

from tests.server.http import CHAT
from tests.support.dockerfile import replay
from tests.support.processes import serving

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


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
    tracked = run("git", "ls-files", "jaxinfer", "kernels/jaxinfer_kernels", "configs", cwd=ROOT).splitlines()
    wanted = {name.removeprefix("kernels/") for name in tracked if not name.startswith("configs/")}
    wanted |= {f"jaxinfer/{name}" for name in tracked if name.startswith("configs/")}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == wanted


def test_the_wheel_alone_answers_serves_and_knows_its_presets(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python, program = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "jaxinfer"
    pins = re.findall(r"^\S+==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (tmp_path / "pins").write_text("\n".join(pins))  # versions as tested; which packages is for the wheel to say
    run(python, "-m", "pip", "install", "--quiet", "--constraint", tmp_path / "pins", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    assert run(program, "run", "--config", "demo-cpu", "What is 7 plus 5?", cwd=tmp_path) == "7 + 5 = 12.\n"
    serve = f"import os; os.execv({str(program)!r}, ['jaxinfer', 'serve', '--port', '0'])"
    with serving(tmp_path / "log", "-c", serve, PYTHONPATH="") as (_, port):
        body = {"messages": [{"role": "user", "content": "What is 7 plus 5?"}]}
        answer = httpx2.post(f"http://127.0.0.1:{port}{CHAT}", json=body, timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == "7 + 5 = 12."


def test_the_dockerfile_is_what_its_linter_wants():
    """`make clients` puts the linter into .clients/hadolint."""
    run(ROOT / ".clients" / "hadolint" / "bin" / "hadolint", "Dockerfile", cwd=ROOT)


def test_the_steps_of_the_dockerfile_make_a_server_that_is_healthy_and_not_root_s(tmp_path):
    image = replay(ROOT / "Dockerfile", ROOT, tmp_path / "root")
    assert f"jaxinfer:x:{image.user}:" in (image.root / "etc" / "passwd").read_text()
    assert stat.S_IMODE((image.root / "cache").stat().st_mode) == 0o700
    program = shutil.which(image.command[0], path=image.environment["PATH"])
    serve = f"import os; os.execv({program!r}, {[*image.command, '--port', '0', '--serve-early']!r})"
    with serving(tmp_path / "log", "-c", serve, PYTHONPATH="", **image.environment) as (_, port):
        check = [word.replace(":8000/", f":{port}/") for word in image.health]
        assert subprocess.run(check, env=image.environment, timeout=30).returncode == 0
        unhealthy = [word.replace(":8000/", f":{port}/v1") for word in image.health]
        assert subprocess.run(unhealthy, env=image.environment, capture_output=True, timeout=30).returncode != 0
    assert list((image.root / "cache" / "jaxinfer").iterdir()), "what was compiled is in the volume"
