"""Hugging Face hub: find a repository, see what it holds before downloading, fetch files into the shared cache.

Without a network the cache serves. Finding out that the hub cannot be reached takes at most REACH_TIMEOUT_S.
"""

import dataclasses
import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, errors, snapshot_download, try_to_load_from_cache

from jaxinfer.checkpoint.contents import METADATA
from jaxinfer.config import size_words
from jaxinfer.errors import CheckpointError, HubUnreachable

REACH_TIMEOUT_S = 4.0


@dataclasses.dataclass(frozen=True)
class Repo:
    """A repository at one commit. revision: as asked for. sizes: of its files, by name.

    cached: its folder in the cache when the hub cannot be asked; sizes are then of the files in it.
    no_download: why what the cache lacks was not downloaded, and what to do; "" when the hub was asked.
    """

    id: str
    revision: str
    commit: str
    cache_dir: Path
    sizes: dict[str, int]
    cached: Path | None = None
    no_download: str = ""


def find(
    repo_id: str, revision: str | None, cache_dir: str | Path | None, suggestion: str, tell: Callable[[str], None]
) -> Repo:
    """Ask the hub for the repository, or find it in the cache when the hub cannot be reached.

    Raises CheckpointError; `suggestion` is its cure for a name that nobody knows.
    """
    folder = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    hint = f"{suggestion} If not, " if suggestion.startswith("did you mean") else ""
    if constants.is_offline_mode():
        fact, cure = "HF_HUB_OFFLINE is set", f"{hint}unset HF_HUB_OFFLINE to download"
        return _find_cached(repo_id, revision, folder, fact, cure, tell)
    tell(f"looking up {repo_id} on the hub")
    try:
        info = _within(
            REACH_TIMEOUT_S,
            lambda: HfApi().model_info(repo_id, revision=revision, files_metadata=True, timeout=REACH_TIMEOUT_S),
        )
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise _refusal(error, repo_id, revision, suggestion) from error
    except errors.HfHubHTTPError as error:
        fact = f"the hub answered {error.response.status_code}"
        denied = error.response.status_code in (401, 403)
        cure = "check HF_TOKEN or run `hf auth login`" if denied else "try again later"
        return _find_cached(repo_id, revision, folder, fact, f"{hint}{cure}", tell)
    except Exception as error:  # every other failure, of whatever HTTP library, means that the hub cannot be asked
        fact = f"the hub cannot be reached ({_reason(error)})"
        cure = f"{hint}check the network (HF_ENDPOINT, HTTPS_PROXY)"
        return _find_cached(repo_id, revision, folder, fact, cure, tell)
    top = [sibling for sibling in info.siblings or [] if "/" not in sibling.rfilename]  # folders hold other formats
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in top}
    named = revision or constants.DEFAULT_REVISION
    return Repo(repo_id, named, info.sha or named, folder, sizes)


def fetch_settings(repo: Repo) -> Path:
    """Download what is missing of the repository's METADATA files; the folder that holds them."""
    # By the revision's name: the cache then remembers the commit that it meant, for when there is no network.
    return _fetch(repo, repo.revision, [name for name in METADATA if name in repo.sizes])


def fetch_weights(repo: Repo, names: Sequence[str]) -> Path:
    """Download what is missing of these files, with the hub's progress bars; the folder that holds them."""
    return _fetch(repo, repo.commit, names)


def _fetch(repo: Repo, revision: str, names: Sequence[str]) -> Path:
    """Raises CheckpointError when the disk is too small, access is not granted, or the download fails."""
    if repo.cached is not None:
        return repo.cached
    _check_disk(repo, names)
    try:
        return Path(
            snapshot_download(
                repo.id,
                revision=revision,
                cache_dir=repo.cache_dir,
                allow_patterns=list(names),
                etag_timeout=REACH_TIMEOUT_S,
                max_workers=4,
            )
        )
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise _refusal(error, repo.id, revision, "check its spelling") from error
    except Exception as error:  # as above: a broken download is one thing to the user, whatever broke it
        raise CheckpointError(
            f"the download of {repo.id} broke off ({_reason(error)}); run the same command again, it continues where "
            "it stopped"
        ) from error


def _find_cached(
    repo_id: str, revision: str | None, cache_dir: Path, fact: str, cure: str, tell: Callable[[str], None]
) -> Repo:
    try:
        # The patterns: a snapshot without the files that we never fetch is complete.
        found = snapshot_download(
            repo_id, revision=revision, cache_dir=cache_dir, local_files_only=True, allow_patterns=list(METADATA)
        )
    except (errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        then = "," if cure.startswith("did you mean") else ";"
        cause = f"not in {cache_dir}, and {fact}"
        raise HubUnreachable(f"cannot find {repo_id}{then} {cure}, or name the folder of a copy: {cause}") from error
    tell(f"taking {repo_id} from the cache: {fact}")
    folder = Path(found)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.exists()}
    return Repo(
        repo_id,
        revision or constants.DEFAULT_REVISION,
        folder.name,
        cache_dir,
        sizes,
        folder,
        f"not downloaded, since {fact}; {cure}",
    )


def missing_files(repo: Repo, names: Collection[str]) -> list[str]:
    """Which of these files the cache does not have yet; none where the hub cannot be asked."""
    if repo.cached is not None:
        return []
    found = {
        name: try_to_load_from_cache(repo.id, name, cache_dir=repo.cache_dir, revision=repo.commit) for name in names
    }
    return [name for name, path in found.items() if not isinstance(path, str)]


def _check_disk(repo: Repo, names: Collection[str]) -> None:
    needed = sum(repo.sizes[name] for name in missing_files(repo, names))
    existing = next(folder for folder in (repo.cache_dir, *repo.cache_dir.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise CheckpointError(
            f"the disk is too small: {repo.id} needs {size_words(needed)}, {repo.cache_dir} has {size_words(free)}; "
            "free some space, or set download_dir (--download-dir) or HF_HOME to a larger disk"
        )


def _refusal(error: Exception, repo_id: str, revision: str | None, suggestion: str) -> CheckpointError:
    """What the hub's answer means to the user."""
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{repo_id} is gated, and your account has no access; accept its terms at "
            f"{constants.ENDPOINT}/{repo_id}, then set HF_TOKEN or run `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"the revision must be a branch, tag or commit of {repo_id}, got {revision!r}; leave it out for the newest"
        )
    return CheckpointError(
        f"the model must be an existing folder, a hub id or 'demo': there is no folder {repo_id!r} and the hub has no "
        f"such model, or it is private; {suggestion} (for a private model set HF_TOKEN or run `hf auth login`)"
    )


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def _within(timeout_s: float, call: Callable[[], Any]) -> Any:
    """call(), or TimeoutError: looking up a host name can block for minutes and knows no timeout of its own."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # handed to the caller below
            outcome.append((None, error))

    # A daemon: one that is stuck must not keep the process from ending.
    thread = threading.Thread(target=run, name="jaxinfer-hub", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
