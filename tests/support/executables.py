"""Where engines of tests keep what they compiled, for the files, processes and runs that come after them. No jax."""

from pathlib import Path


def executables_folder() -> Path:
    folder = Path(__file__).resolve().parents[2] / ".pytest_cache" / "executables"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
