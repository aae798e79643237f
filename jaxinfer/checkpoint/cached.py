"""Models in the hub's cache: which, how large, of what kind. Nothing is asked of the hub, and no jax is imported."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.contents import read_config
from jaxinfer.errors import CheckpointError

_PREFIX = "models--"


@dataclasses.dataclass(frozen=True)
class CachedModel:
    """A repository in the cache.

    place: its folder there.    num_bytes: of all it keeps, what is half downloaded included.
    snapshot: the files of its newest revision, None before the first is there.    weight_bytes: of their safetensors.
    is_partial: a download has not ended, or a file of the snapshot is gone.
    """

    id: str
    place: Path
    num_bytes: int
    snapshot: Path | None
    weight_bytes: int
    is_partial: bool

    @property
    def config(self) -> dict[str, Any]:
        """What its config.json says; {} where there is none that can be read."""
        try:
            return read_config(self.snapshot) if self.snapshot else {}
        except CheckpointError:
            return {}

    def remove(self) -> None:
        """Delete it from the cache. Raises CheckpointError."""
        try:
            shutil.rmtree(self.place)
        except OSError as error:
            raise CheckpointError(f"cannot remove {self.place}: {error.strerror}; remove it yourself") from error


def cached_models(cache_dir: str | Path | None) -> Iterator[CachedModel]:
    """Each model of the cache, by name. cache_dir: None is the hub's own."""
    return map(_read, _places(cache_dir))


def cached_ids(cache_dir: str | Path | None) -> list[str]:
    """The ids of the models of the cache, those half downloaded included. cache_dir: None is the hub's own."""
    return [_id(place) for place in _places(cache_dir)]


def _places(cache_dir: str | Path | None) -> list[Path]:
    from huggingface_hub import constants  # most verbs do not need it

    folder = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    return sorted(place for place in folder.glob(f"{_PREFIX}*") if place.is_dir())


def _id(place: Path) -> str:
    return place.name.removeprefix(_PREFIX).replace("--", "/")


def _read(place: Path) -> CachedModel:
    kept = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    snapshot = _newest(place)
    files = list(snapshot.iterdir()) if snapshot else []
    weights = [path for path in files if path.suffix == ".safetensors" and path.exists()]
    partial = any(path.suffix == ".incomplete" for path in kept) or any(not path.exists() for path in files)
    return CachedModel(
        id=_id(place),
        place=place,
        num_bytes=sum(path.stat().st_size for path in kept),
        snapshot=snapshot,
        weight_bytes=sum(path.stat().st_size for path in weights),
        is_partial=partial or not weights,
    )


def _newest(place: Path) -> Path | None:
    """The snapshot that "main" means, else the one made last."""
    main = place / "refs" / "main"
    if main.is_file() and (named := place / "snapshots" / main.read_text().strip()).is_dir():
        return named
    return max((path for path in place.glob("snapshots/*") if path.is_dir()), key=_made_s, default=None)


def _made_s(path: Path) -> float:
    return path.stat().st_mtime
