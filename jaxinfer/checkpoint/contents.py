"""What a checkpoint's folder must hold, judged by its file names, and how its JSON files are read.

The names come from a folder or from the hub's listing, so that a repository without what we need is refused before
anything large is downloaded.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jaxinfer.errors import CheckpointError, file_fault
from jaxinfer.models.quantization_config import FILE, KEYS, MODELOPT

CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
METADATA = (
    *(CONFIG, QUANTIZATION, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, INDEX),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json"),
)
"""Everything that is read beside the weights."""

MAX_JSON_BYTES = 16 * 2**20  # the index of the largest checkpoint known to us takes 9 MB
MAX_TOKENIZER_BYTES = 128 * 2**20  # of tokenizer.json: the largest known to us takes 35 MB
_ADAPTER_CONFIG = "adapter_config.json"
_OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tiktoken.model")
_LFS_PREFIX = b"version https://git-lfs"


def check_names(names: Collection[str], where: str, needs: Collection[str], cure: str = "") -> None:
    """Raise one CheckpointError with everything that `where`, holding files of these names, lacks.

    cure: of every file that is missing, in the place of the one that suits it.
    """
    weights = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf and not weights:
        raise CheckpointError(
            f"{where}: the weights must be safetensors, there is only GGUF ({gguf[0]}); "
            "take the original model that the GGUF file was made from"
        )
    if _ADAPTER_CONFIG in names and not weights:
        raise CheckpointError(
            f"{where}: must be a whole model, it is an adapter ({_ADAPTER_CONFIG}); "
            "merge it into its base model and serve the result, or serve the base model"
        )
    faults = []
    if "config" in needs and CONFIG not in names:
        faults.append(f"{CONFIG} is missing; {cure or 'name the folder of a Hugging Face model'}")
    if "tokenizer" in needs and TOKENIZER not in names:
        faults.append(_no_tokenizer(names, cure))
    if "weights" in needs:
        faults += _weight_faults(names, weights, cure)
    if len(faults) == 1:
        raise CheckpointError(f"{where}: {faults[0]}")
    if faults:
        raise CheckpointError(f"{where}: must be a Hugging Face model:" + "".join(f"\n  - {fault}" for fault in faults))


def check_sizes(sizes: Mapping[str, int], where: str) -> None:
    """Raise one CheckpointError with every file that is read beside the weights and too large to be what it should.

    sizes: bytes by file name, known before anything is downloaded or read.
    """
    most = dict.fromkeys(METADATA, MAX_JSON_BYTES) | {TOKENIZER: MAX_TOKENIZER_BYTES}
    faults = [
        f"{name} must be at most {most[name]} bytes, got {size}; download it again"
        for name, size in sizes.items()
        if size > most.get(name, size)
    ]
    if faults:
        raise CheckpointError(f"{where}: " + "; ".join(faults))


def _no_tokenizer(names: Collection[str], cure: str) -> str:
    others = [name for name in _OTHER_TOKENIZERS if name in names]
    if others:
        return (
            f"{TOKENIZER} is missing, there is only {', '.join(others)}; write it with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return f"{TOKENIZER} is missing; {cure or 'copy it from the model that this one was made from'}"


def _weight_faults(names: Collection[str], weights: list[str], cure: str) -> list[str]:
    if MODEL in names or INDEX in names or len(weights) == 1:
        return []
    if weights:
        return [f"{INDEX} is missing beside {len(weights)} safetensors files; {cure or 'download it again'}"]
    pickled = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickled:
        return [
            f"the weights must be safetensors, there is only {pickled[0]}, which is never read because loading it can "
            "run code; convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"
        ]
    return [f"the weights are missing: neither {MODEL} nor {INDEX} is there; {cure or 'download the model again'}"]


def weight_names(names: Collection[str], weight_map: Mapping[str, str] | None) -> list[str]:
    """The files that hold the weights, given the index when there is one."""
    if weight_map is not None:
        return sorted(set(weight_map.values()))
    if MODEL in names:
        return [MODEL]
    return [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]


def read_weight_map(folder: Path, names: Collection[str]) -> dict[str, str] | None:
    """The index's table of tensor name to file name; None when there is no index or a single file beside it."""
    if INDEX not in names or MODEL in names:
        return None
    path = folder / INDEX
    table = read_json(path).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{path}: weight_map must be a table of file names; download it again")
    for tensor, name in table.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or set(name) & set("/\\\0"):
            raise CheckpointError(
                f"{path}: tensor {tensor[:120]!r} must be in a .safetensors file of this folder, "
                f"got {str(name)[:120]!r}; download it again"
            )
    return table


def check_shards(files: Collection[str], names: Collection[str], where: str, cure: str = "") -> None:
    """Raise CheckpointError naming every weight file that the index names and that is not there. cure: as above."""
    missing = [name for name in files if name not in names]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise CheckpointError(
            f"{where}: every file that {INDEX} names must be there, missing are {', '.join(missing[:5])}{more}; "
            f"{cure or 'download the model again'}"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says; {} where there is none.

    Where it does not say how weights are quantized, and ModelOpt's file beside it does, then with what that says.
    """
    if not (folder / CONFIG).exists():
        return {}
    config = read_json(folder / CONFIG)
    if (folder / QUANTIZATION).exists() and all(config.get(key) is None for key in KEYS):
        config[KEYS[0]] = {"quant_method": MODELOPT} | read_json(folder / QUANTIZATION) | {FILE: QUANTIZATION}
    return config


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises CheckpointError, with line and column, when it is anything else.
    """
    refuse_pointer(path)
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: must be at most {MAX_JSON_BYTES} bytes, got {size}; download it again")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: must be UTF-8, byte {error.start} is not; download it again") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        fault = error.msg.removesuffix(" at")  # as json ends some of its messages
        raise CheckpointError(f"{path}: must be JSON: {fault} at {place}; correct or download it again") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, or endless nesting
        raise CheckpointError(
            f"{path}: must be JSON of sensible size and depth, it is not; download it again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, got a {type(value).__name__}; download it again")
    return value


def refuse_pointer(path: Path) -> None:
    """Raise CheckpointError when the file is what git leaves in place of a large file, or not a file at all."""
    if not path.is_file():
        raise CheckpointError(f"{path}: must be a regular file, it is not; point to a folder of ordinary files")
    try:
        with path.open("rb") as file:
            prefix = file.read(len(_LFS_PREFIX))
    except OSError as error:
        raise CheckpointError(f"{file_fault('read', path, error)}; change its mode") from error
    if prefix == _LFS_PREFIX:
        raise CheckpointError(f"{path}: must hold data, got a git-lfs pointer; run `git lfs pull` in its folder")
