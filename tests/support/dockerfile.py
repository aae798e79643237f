"""A Dockerfile's steps, carried out in a folder: no container engine is needed, nothing outside the folder is touched.

What a folder cannot show is shimmed: `useradd` works on the folder's own /etc, `install` puts absolute paths under it
and changes no owner. The base image is a virtual environment of this Python.
"""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ACCOUNTS = ("passwd", "group", "shadow", "gshadow")
SHIMS = {
    "useradd": 'exec {useradd} --prefix "{root}" "$@"',
    "install": """
for word do
    shift
    case $word in /*) word="{root}$word" ;; esac
    set -- "$@" "$word"
done
exec {python} -c 'import sys; from pathlib import Path
flag, owner, uid, mode, bits, folder = sys.argv[1:]
assert (flag, owner, mode) == ("-d", "-o", "-m"), sys.argv
Path(folder).mkdir(mode=int(bits, 8), parents=True)' "$@"
""",
}


@dataclasses.dataclass
class Image:
    """What the steps left. environment: of its processes, with paths in the folder."""

    root: Path
    workdir: Path
    environment: dict[str, str]
    user: str = ""
    health: list[str] = dataclasses.field(default_factory=list)
    command: list[str] = dataclasses.field(default_factory=list)


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, rest) of each, comments gone and lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [
        (name, rest.strip()) for line in joined.splitlines() if line.strip() for name, _, rest in [line.partition(" ")]
    ]


def replay(
    dockerfile: Path,
    context: Path,
    root: Path,
    given: Mapping[str, str] = MappingProxyType({}),
    programs: Mapping[str, str] = MappingProxyType({}),
) -> Image:
    """Carry out every instruction. given: as --build-arg has it.    programs: scripts in the place of programs.

    Raises CalledProcessError with what a step said, ValueError for an unknown one.
    """
    image = _base(root, programs)
    entrypoint: list[str] = []
    arguments: dict[str, str] = {}
    for name, rest in instructions(dockerfile.read_text()):
        match name:
            case "FROM":
                assert rest == f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim", rest
            case "ARG":
                key, _, value = rest.partition("=")
                arguments[key] = given.get(key, value.strip('"'))
            case "WORKDIR":
                image.workdir = _inside(root, rest)
                image.workdir.mkdir(parents=True)
            case "COPY":
                _copy(context, image.workdir, shlex.split(rest))
            case "RUN":
                _run(image, rest, arguments)
            case "ENV":
                pairs = (word.partition("=") for word in shlex.split(rest))
                image.environment |= {key: _moved(root, value) for key, _, value in pairs}
            case "USER":
                image.user = rest
            case "HEALTHCHECK":
                image.health = json.loads(rest[rest.index("CMD ") + 4 :])
            case "ENTRYPOINT":
                entrypoint = json.loads(rest)
            case "CMD":
                image.command = [*entrypoint, *json.loads(rest)]
            case "VOLUME" | "EXPOSE":
                pass
            case _:
                raise ValueError(f"an instruction must be known here, got {name}; teach {__name__}")
    return image


def _base(root: Path, programs: Mapping[str, str]) -> Image:
    venv.create(root / "usr", with_pip="pip" not in programs)
    (root / "etc").mkdir()
    for name in ACCOUNTS:
        (root / "etc" / name).write_text("")
    shims = root / "shims"
    shims.mkdir()
    for name, text in {**SHIMS, **programs}.items():
        filled = text.format(root=root, python=sys.executable, useradd=shutil.which("useradd"))
        (shims / name).write_text(f"#!/bin/sh\n{filled}\n")
        (shims / name).chmod(0o755)
    path = os.pathsep.join([str(shims), str(root / "usr" / "bin"), "/usr/sbin", "/usr/bin", "/bin"])
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HOME"))}
    return Image(root, root, kept | {"PATH": path})


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _moved(root: Path, value: str) -> str:
    return str(_inside(root, value)) if value.startswith("/") else value


def _copy(context: Path, workdir: Path, words: list[str]) -> None:
    """Tracked files alone: what else lies in a checkout must not be needed."""
    *sources, target = words
    for source in sources:
        listed = subprocess.run(["git", "ls-files", source], cwd=context, capture_output=True, text=True, check=True)
        names = listed.stdout.split()
        assert names, f"{source} is not there"
        for name in names:
            inner = Path(name).relative_to(source) if (context / source).is_dir() else Path(Path(name).name)
            place = workdir / target / inner
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(context / name, place)


def _run(image: Image, command: str, arguments: dict[str, str]) -> None:
    environment = image.environment | arguments
    command = command.replace("--no-cache-dir ", "")  # the image must not keep it; this machine may
    done = subprocess.run(["sh", "-ec", command], cwd=image.workdir, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout[-2000:], done.stderr[-2000:])
