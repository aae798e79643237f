"""A model's name to its files on this machine: a folder, a hub id, or "demo" for the bundled checkpoint.

Everything that can be wrong with a checkpoint short of its tensors is found here, in seconds and before any weight is
read or downloaded. Only JSON is parsed and only safetensors are accepted; no code from a checkpoint is run.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxinfer.checkpoint.cached import cached_ids
from jaxinfer.checkpoint.contents import (
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_names,
    check_shards,
    check_sizes,
    read_config,
    read_json,
    read_weight_map,
    refuse_pointer,
    weight_names,
)
from jaxinfer.config import EngineConfig, counted, nearest_name, size_words
from jaxinfer.errors import CheckpointError, HubUnreachable, file_fault
from jaxinfer.models.known import nearest, unsupported
from jaxinfer.models.ollama_names import of_ollama
from jaxinfer.models.overrides import OverriddenConfig

if TYPE_CHECKING:
    from jaxinfer.checkpoint.hub import Repo

Part = Literal["config", "tokenizer", "weights"]
CheckConfig = Callable[[dict[str, Any]], object]
OnProgress = Callable[[str], None]

ALL_PARTS: tuple[Part, ...] = ("config", "tokenizer", "weights")
DEMO_FOLDER = Path(__file__).parents[1] / "demo" / "checkpoint"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
# of a model's page, with or without the scheme; a tag that Ollama takes behind it is left out
_URL = re.compile(r"(?:https?://[^/]+|hf\.co|huggingface\.co)/([^/]+/[^/?#:]+).*")
TAGGED = re.compile(r"(?:[\w.-]+/)?([A-Za-z][\w.-]*):(latest|(?:e?\d[\d.x]*[bBmM]|instruct|text)(?:-[\w.-]+)?)")
"""A model as Ollama names it: its family, then its size, its version or the newest."""
UNTAGGED = re.compile(
    r"(qwen|qwq|deepseek|mistral|ministral|mixtral|codestral|devstral|gemma|gpt-oss|smollm|granite|(code|tiny)?llama|phi(?=\d))"
    r"-?(v?\d+(\.\d+)?)?(-(r1|v\d(\.\d)?|coder|instruct|reasoning|mini|small|large|nemo|embedding))?",
    re.IGNORECASE,
)
"""A family as Ollama names it, without a size: no name that the hub has without its organisation. A server may serve a
model under it, so only who looks for it on the hub refuses it.
"""
BLANKS = ("MODEL", "FOLDER")  # what help texts and pages say where a model is to be named
TOKENIZER_FLAG = "--tokenizer"
_MAX_SIBLINGS = 10_000  # folder entries looked through for a did-you-mean


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model's files and what its JSON files say, unchanged but for the user's overrides of config.json.

    name: as the user gave it.    commit: the hub's, None for a folder.    generation_config, tokenizer_config: {} when
    the checkpoint has no such file.    weight_files: safetensors, in the order of their names.
    weight_map: tensor name to file name when there is an index.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    weight_files: tuple[Path, ...] = ()
    weight_map: dict[str, str] | None = None
    commit: str | None = None

    @property
    def is_demo(self) -> bool:
        return self.folder == DEMO_FOLDER


def needed_parts(config: EngineConfig) -> tuple[Part, ...]:
    """What a start with these settings reads of the model's own folder."""
    skipped = {"weights"} if config.load_format == "dummy" else set()
    if config.tokenizer is not None:
        skipped.add("tokenizer")
    return tuple(part for part in ALL_PARTS if part not in skipped)


def resolve(
    model: str,
    *,
    revision: str | None = None,
    download_dir: str | Path | None = None,
    needs: Collection[Part] = ALL_PARTS,
    overrides: Mapping[str, Any] | None = None,
    check_config: CheckConfig | None = None,
    on_progress: OnProgress | None = None,
) -> Checkpoint:
    """Find the model's files, download what is missing, and read its JSON files.

    revision: branch, tag or commit of a hub id.    download_dir: instead of the Hugging Face cache.
    needs: what must be there; without "weights" none are downloaded, without "config" its JSON may be missing.
    overrides: values that stand in the place of config.json's.
    check_config: called with config.json's content, overrides included, before any weight is downloaded; what it raises
    is passed on.
    on_progress: told in a few words what takes time; downloads show the hub's own progress bars.

    Raises CheckpointError.
    """
    tell, check = on_progress or _ignore, check_config or _ignore
    folder = local_folder(model)
    if folder is not None:
        if revision is not None:
            raise CheckpointError(f"a revision belongs to a hub id, got {revision!r} for a folder; leave it out")
        checkpoint = _read_folder(model, folder, needs, overrides)
        check(checkpoint.config)
        return checkpoint
    repo = find_repo(model, revision, download_dir, needs, tell)
    from jaxinfer.checkpoint import hub

    tell(f"reading the settings of {model}")
    folder = hub.fetch_settings(repo)
    settings = _read_folder(model, folder, set(needs) - {"weights"}, overrides, repo.commit)
    check(settings.config)
    if "weights" in needs:
        files = weight_names(repo.sizes, read_weight_map(folder, repo.sizes))
        check_shards(files, repo.sizes, model, repo.no_download)
        if missing := hub.missing_files(repo, files):
            size = size_words(sum(repo.sizes[name] for name in missing))
            tell(f"fetching the weights of {model}: {counted(len(missing), 'file')}, {size}")
        folder = hub.fetch_weights(repo, files)
    return _read_folder(model, folder, needs, overrides, repo.commit)


def find_repo(
    model: str,
    revision: str | None,
    download_dir: str | Path | None,
    needs: Collection[Part],
    on_progress: OnProgress | None = None,
) -> "Repo":
    """Find a hub id on the hub or in the cache, with the files that are needed. Nothing is downloaded.

    The arguments are those of `resolve`. Raises CheckpointError.
    """
    from jaxinfer.checkpoint import hub  # takes half a second to import, and a folder does not need it

    cached = cached_ids(download_dir)
    refuse_family(model, cached)
    suggestion = _suggestion(model, cached)
    try:
        repo = hub.find(model, revision, download_dir, suggestion, on_progress or _ignore)
    except HubUnreachable as error:  # no config.json can say it
        if reason := unsupported(model):
            raise CheckpointError(f"cannot run {model}: {reason}") from error
        raise
    check_names(repo.sizes, model, needs, repo.no_download)
    check_sizes(repo.sizes, model)
    return repo


def refuse_family(model: str, cached: Collection[str]) -> None:
    """Raise CheckpointError for a family as Ollama names it that neither a folder here nor the cache has."""
    if UNTAGGED.fullmatch(model) and model not in cached and _nearest_path(_expanded(model)) is None:
        known = of_ollama(model)
        if known or not unsupported(model):
            raise _name_of_ollama("the model", model, known)


def hub_name(model: str) -> str | None:
    """The hub's name of what Ollama names so; None for every other name. Raises CheckpointError where we know none."""
    if UNTAGGED.fullmatch(model):
        found = of_ollama(model)
    elif tag := TAGGED.fullmatch(model):
        found = of_ollama(tag[1], tag[2])
    else:
        return None
    if found is None:
        raise _name_of_ollama("the model", model, None)
    return found


def local_folder(
    model: str, *, what: str = "the model", law: str = "an existing folder, a hub id or 'demo'"
) -> Path | None:
    """The folder that `model` names; None when it has the form of a hub id. Raises CheckpointError if it is neither.

    what: is named.    law: what it must be.
    """
    if model == "demo":
        return DEMO_FOLDER
    if not model or "\0" in model or len(model) > 4096 or any(len(part) > 255 for part in model.split("/")):
        raise CheckpointError(f"{what} must be a folder, a hub id or 'demo', got {model[:60]!r}; name one")
    path = _expanded(model)
    if path.is_dir():
        return path
    if path.name in BLANKS:
        law = f"{what} must be a folder, a hub id or 'demo', got {model!r}, which stands for one"
        raise CheckpointError(f"{law}; name one, as in 'Qwen/Qwen3-0.6B'")
    if path.is_file():
        cure = "name its folder" if (path.parent / "config.json").is_file() else "name a folder or a hub id"
        if path.suffix == ".gguf":
            cure = "GGUF is not supported, take the safetensors version"
        raise CheckpointError(f"{what} must be a folder or a hub id, got the file {model!r}; {cure}")
    if url := _URL.fullmatch(model):
        raise CheckpointError(f"{what} must be a folder or a hub id, got the URL {model!r}; name it {url[1]!r}")
    if tag := TAGGED.fullmatch(model):
        raise _name_of_ollama(what, model, of_ollama(tag[1], tag[2]))
    if path.suffix == ".gguf":
        raise CheckpointError(f"cannot run {model}: {unsupported(model)}")
    if _HUB_ID.fullmatch(model) and ".." not in model:
        return None
    raise CheckpointError(f"{what} must be {law}, got {model!r}; {_suggestion(model, ())}")


def _name_of_ollama(what: str, model: str, known: str | None) -> CheckpointError:
    """Of a name that means something to Ollama. known: its name on the hub, where we know it."""
    cure = f"name it {known!r}" if known else "name the model as huggingface.co does, as in 'Qwen/Qwen3-0.6B'"
    return CheckpointError(f"{what} must be a folder or a hub id, got {model!r}, a name of Ollama's; {cure}")


def _expanded(model: str) -> Path:
    try:
        return Path(model).expanduser()
    except RuntimeError:  # "~somebody" where there is no such user: an ordinary name then
        return Path(model)


def _suggestion(model: str, ids: Collection[str]) -> str:
    """What to do about a model that is not there: the nearest names that are, else to look at the name again."""
    near = [str(path) for path in [_nearest_path(_expanded(model))] if path is not None]
    known = [nearest_name(model, ["demo", *ids], 0.7) or nearest(model)]
    known = [name for name in known if name != model]  # spelt right, and not to be had
    near += [cached for cached in ids if cached.casefold().endswith("/" + model.casefold())] or filter(None, known)
    return f"did you mean {' or '.join(repr(name) for name in near[:2])}?" if near else "check its spelling"


def _nearest_path(path: Path) -> Path | None:
    """The folder that is spelt most like `path`, correcting its last parts, one in each folder that exists."""
    if path.parent == path:
        return None
    parent = path.parent if path.parent.is_dir() else _nearest_path(path.parent)
    if parent is None or (parent / path.name).is_dir():
        return parent and parent / path.name
    try:
        names = [entry.name for entry in itertools.islice(parent.iterdir(), _MAX_SIBLINGS) if entry.is_dir()]
    except OSError:  # not allowed to look: then there is nothing to suggest
        return None
    match = nearest_name(path.name, names)
    return parent / match if match else None


def _read_folder(
    model: str,
    folder: Path,
    needs: Collection[Part],
    overrides: Mapping[str, Any] | None,
    commit: str | None = None,
) -> Checkpoint:
    try:
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.exists()}
    except OSError as error:
        raise CheckpointError(f"{file_fault('read', folder, error)}; change its mode") from error
    check_names(sizes, str(folder), needs)
    check_sizes(sizes, str(folder))
    if "tokenizer" in needs:
        refuse_pointer(folder / TOKENIZER)
    weight_map = None
    files: list[str] = []
    if "weights" in needs:
        weight_map = read_weight_map(folder, sizes)
        files = weight_names(sizes, weight_map)
        check_shards(files, sizes, str(folder))
    return Checkpoint(
        name=model,
        folder=folder,
        config=OverriddenConfig(read_config(folder), overrides or {}),
        generation_config=read_json(folder / GENERATION_CONFIG) if GENERATION_CONFIG in sizes else {},
        tokenizer_config=read_json(folder / TOKENIZER_CONFIG) if TOKENIZER_CONFIG in sizes else {},
        weight_files=tuple(folder / name for name in files),
        weight_map=weight_map,
        commit=commit,
    )


@contextlib.contextmanager
def tokenizer_of(name: str) -> Iterator[None]:
    """Say of what is wrong with another tokenizer's files that --tokenizer named them."""
    local_folder(name, what=TOKENIZER_FLAG)
    try:
        yield
    except CheckpointError as error:
        error.args = (f"{TOKENIZER_FLAG}: {error}",)
        raise


def _ignore(told: object) -> None:
    """The listener of callers that show or check nothing."""
