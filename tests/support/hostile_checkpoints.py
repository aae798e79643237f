"""Checkpoints that must be refused: each variant spoils a sound tiny folder in one way.

Check A20 of the reliability list and every message of the issue. Used by the tests of the checkpoint room, of
`python -O`, and of the command line.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.checkpoints import (
    model_config,
    random_tensors,
    write_checkpoint,
    write_raw_safetensors,
    write_safetensors,
)

NORM = "model.norm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SENTINEL = "sentinel-was-touched"


@dataclasses.dataclass(frozen=True)
class Variant:
    """How to spoil a folder, and the words that the refusal must hold: file, tensor, cure."""

    spoil: Callable[[Path], None]
    words: tuple[str, ...]
    num_shards: int = 1


def write_hostile_checkpoint(folder: Path, name: str) -> Variant:
    """Write the variant's folder; the variant tells what its refusal must say."""
    variant = VARIANTS[name]
    write_checkpoint(folder, num_shards=variant.num_shards)
    variant.spoil(folder)
    return variant


def _remove(*names: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def _text(name: str, text: str | bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return spoil


def _huge(sizes: dict[str, int]) -> Callable[[Path], None]:
    """Files of these sizes, which take no room on the disk."""

    def spoil(folder: Path) -> None:
        for name, num_bytes in sizes.items():
            with (folder / name).open("wb") as file:
                file.truncate(num_bytes)

    return spoil


def _instead_of_weights(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / name).write_bytes(b"not read")

    return spoil


def _adapter(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    write_safetensors(folder / "adapter_model.safetensors", {"lora_A": np.zeros((2, 2), np.float32)})


def _tensors(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = random_tensors(model_config("qwen3"))
        change(tensors)
        write_safetensors(folder / WEIGHTS, tensors)

    return spoil


def _set(name: str, value: np.ndarray) -> Callable[[Path], None]:
    return _tensors(lambda tensors: tensors.__setitem__(name, value))


def _header(change: Callable[[dict[str, dict]], None]) -> Callable[[Path], None]:
    """Change the parsed header of a sound file, keeping its data."""

    def spoil(folder: Path) -> None:
        path = folder / WEIGHTS
        content = path.read_bytes()
        stop = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:stop])
        change(header)
        write_raw_safetensors(path, header, [content[stop:]])

    return spoil


def _field(name: str, key: str, value: object) -> Callable[[Path], None]:
    return _header(lambda header: header[name].__setitem__(key, value))


def _length(claimed: int, file_bytes: int | None = None) -> Callable[[Path], None]:
    """A header length, and a file that really is that large (sparse) or as it was."""

    def spoil(folder: Path) -> None:
        with (folder / WEIGHTS).open("r+b") as file:
            file.write(claimed.to_bytes(8, "little"))
            if file_bytes is not None:
                file.truncate(file_bytes)

    return spoil


def _overlap(header: dict[str, dict]) -> None:
    begin, end = header[DOWN]["data_offsets"]
    header[DOWN]["data_offsets"] = [begin - 64, end - 64]


def _hole(header: dict[str, dict]) -> None:
    del header[DOWN]


def _duplicate_key(folder: Path) -> None:
    entry = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    write_raw_safetensors(folder / WEIGHTS, f'{{"{NORM}": {entry}, "{NORM}": {entry}}}'.encode(), [bytes(4)])


def _truncate(folder: Path) -> None:
    path = folder / WEIGHTS
    os.truncate(path, path.stat().st_size - 100)


def _append(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.write(bytes(100))


def _pipe(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def _second_copy(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    names = sorted(set(index["weight_map"].values()))
    tensors = random_tensors(model_config("qwen3"))
    last = [name for name, file in index["weight_map"].items() if file == names[-1]]
    write_safetensors(folder / names[-1], {name: tensors[name] for name in [*last, "model.embed_tokens.weight"]})


def _index(change: Callable[[dict[str, str]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return spoil


def _auto_map(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"}
    del config["architectures"]  # beside the name of one that we have, it is harmless
    (folder / "config.json").write_text(json.dumps(config))
    for module in ("configuration_evil", "modeling_evil", "__init__", "setup", "conftest"):
        (folder / f"{module}.py").write_text(f"open({str(folder / SENTINEL)!r}, 'w').close()\n")


def _pickle(folder: Path) -> None:
    """A .bin whose loading would touch the sentinel."""
    (folder / WEIGHTS).unlink()
    reduced = f"cposix\nsystem\n(S'touch {folder / SENTINEL}'\ntR."
    (folder / "pytorch_model.bin").write_bytes(reduced.encode())


def _no_index(folder: Path) -> None:
    (folder / INDEX).unlink()


VARIANTS: dict[str, Variant] = {
    # What the folder holds
    "only .bin": Variant(_pickle, ("pytorch_model.bin", "safetensors", "convert")),
    "only .pth": Variant(_instead_of_weights("consolidated.00.pth"), ("consolidated.00.pth", "safetensors")),
    "only GGUF": Variant(_instead_of_weights("model-Q4_K_M.gguf"), ("model-Q4_K_M.gguf", "safetensors")),
    "only an adapter": Variant(_adapter, ("adapter_config.json", "base model")),
    "no weights": Variant(_remove(WEIGHTS), ("weights are missing", WEIGHTS)),
    "no config": Variant(_remove("config.json"), ("config.json", "missing")),
    "no tokenizer": Variant(_remove("tokenizer.json"), ("tokenizer.json", "missing")),
    "nothing at all": Variant(
        _remove("config.json", "tokenizer.json", WEIGHTS), ("config.json", "tokenizer.json", "weights are missing")
    ),
    "remote code": Variant(_auto_map, ("auto_map", "never run")),
    # JSON
    "broken config": Variant(_text("config.json", '{"vocab_size": 3,,}'), ("config.json", "line 1", "column 18")),
    "config is a list": Variant(_text("config.json", "[]"), ("config.json", "object", "list")),
    "config in Latin-1": Variant(_text("config.json", b'{"a": "\xe9"}'), ("config.json", "UTF-8")),
    "config nested endlessly": Variant(_text("config.json", '{"a":' * 10**5), ("config.json", "depth")),
    "config with a huge integer": Variant(_text("config.json", '{"a":' + "9" * 9999 + "}"), ("config.json", "size")),
    "config of 17 MB": Variant(_text("config.json", " " * 17 * 2**20), ("config.json", "at most")),
    "tokenizer of 129 MB": Variant(_huge({"tokenizer.json": 129 << 20}), ("tokenizer.json", "at most 134217728")),
    "tokenizer of 5 GB and a template of 17 MB": Variant(
        _huge({"tokenizer.json": 5 << 30, "chat_template.jinja": 17 << 20}),
        ("tokenizer.json must be at most", "chat_template.jinja must be at most 16777216 bytes"),
    ),
    "config is a pointer": Variant(
        _text("config.json", "version https://git-lfs.github.com/spec/v1\n"), ("config.json", "git lfs pull")
    ),
    "broken generation config": Variant(_text("generation_config.json", "{"), ("generation_config.json", "line 1")),
    "broken tokenizer config": Variant(_text("tokenizer_config.json", ""), ("tokenizer_config.json", "line 1")),
    "tokenizer is a pointer": Variant(
        _text("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n"), ("tokenizer.json", "git lfs pull")
    ),
    # Several files
    "broken index": Variant(_text(INDEX, "{"), (INDEX, "line 1"), num_shards=3),
    "index without a table": Variant(_text(INDEX, '{"weight_map": []}'), (INDEX, "weight_map"), num_shards=3),
    "no index": Variant(_no_index, (INDEX, "missing"), num_shards=3),
    "missing shard": Variant(
        _remove("model-00002-of-00003.safetensors"), ("model-00002-of-00003.safetensors", INDEX), num_shards=3
    ),
    "index leads out of the folder": Variant(
        _index(lambda table: table.__setitem__(NORM, "../../model.safetensors")),
        (INDEX, NORM, "../../model.safetensors"),
        num_shards=3,
    ),
    "index names a tensor that is not there": Variant(
        _index(lambda table: table.__setitem__("model.extra", "model-00001-of-00003.safetensors")),
        ("model-00001-of-00003.safetensors", "model.extra"),
        num_shards=3,
    ),
    "index names the wrong file": Variant(
        _index(lambda table: table.__setitem__(NORM, "model-00001-of-00003.safetensors")),
        ("model-00001-of-00003.safetensors", NORM),
        num_shards=3,
    ),
    "tensor in two files": Variant(
        _second_copy,
        ("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors", "model.embed_tokens.weight"),
        num_shards=3,
    ),
    # One file
    "empty file": Variant(_text(WEIGHTS, b""), (WEIGHTS, "8 bytes")),
    "weights are a pointer": Variant(
        _text(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"), (WEIGHTS, "git lfs pull")
    ),
    "weights are a pipe": Variant(_pipe, (WEIGHTS, "regular file")),
    "header of 2^63 bytes": Variant(_length(2**63), (WEIGHTS, str(2**63))),
    "header of 101 MB": Variant(_length(101_000_000, 102_000_000), (WEIGHTS, "101000000")),
    "header beyond the end": Variant(_length(2**22), (WEIGHTS, "truncated")),
    "header of a million objects": Variant(
        lambda folder: write_raw_safetensors(folder / WEIGHTS, b"[" + b"{}," * 10**6 + b"{}]", []),
        (WEIGHTS, "at most 100000"),
    ),
    "header of a million numbers": Variant(
        lambda folder: write_raw_safetensors(
            folder / WEIGHTS, b"{" + b",".join(b'"%d":1' % i for i in range(10**6)) + b"}", []
        ),
        (WEIGHTS, "at most 100000"),
    ),
    "header is not JSON": Variant(
        lambda folder: write_raw_safetensors(folder / WEIGHTS, b"{'a': 1}", []), (WEIGHTS, "JSON")
    ),
    "header is a list": Variant(
        lambda folder: write_raw_safetensors(folder / WEIGHTS, b"[1, 2]", []), (WEIGHTS, "list")
    ),
    "header is not UTF-8": Variant(
        lambda folder: write_raw_safetensors(folder / WEIGHTS, b'{"\xff": 1}', []), (WEIGHTS, "utf-8")
    ),
    "header nested deeply": Variant(
        lambda folder: write_raw_safetensors(folder / WEIGHTS, b'{"a":' * 90_000, []), (WEIGHTS, "nested")
    ),
    "same tensor twice": Variant(_duplicate_key, (WEIGHTS, NORM, "twice")),
    "metadata is a list": Variant(
        _header(lambda header: header.__setitem__("__metadata__", [1])), (WEIGHTS, "__metadata__")
    ),
    "tensor is a list": Variant(_header(lambda header: header.__setitem__(NORM, [])), (WEIGHTS, NORM)),
    "unknown key in a tensor": Variant(_field(NORM, "code", "import os"), (WEIGHTS, NORM, "exactly")),
    "unknown dtype": Variant(_field(NORM, "dtype", "F31"), (WEIGHTS, NORM, "F31")),
    "dtype that does not fill its bytes": Variant(_field(NORM, "dtype", "F64"), (WEIGHTS, NORM, "F64")),
    "shape that does not fill its bytes": Variant(_field(NORM, "shape", [63]), (WEIGHTS, NORM, "63")),
    "negative size": Variant(_field(NORM, "shape", [-8, -8]), (WEIGHTS, NORM, "-8")),
    "size is true": Variant(_field(NORM, "shape", [True, 64]), (WEIGHTS, NORM, "True")),
    "size of 2^64": Variant(_field(NORM, "shape", [2**64, 0]), (WEIGHTS, NORM, str(2**64))),
    "shape of a thousand sizes": Variant(_field(NORM, "shape", [1] * 1000), (WEIGHTS, NORM, "at most 8")),
    "offsets in the wrong order": Variant(_field(NORM, "data_offsets", [256, 0]), (WEIGHTS, NORM, "[256, 0]")),
    "offsets past the end": Variant(_field(NORM, "data_offsets", [0, 2**40]), (WEIGHTS, NORM, "truncated")),
    "overlapping tensors": Variant(_header(_overlap), (WEIGHTS, DOWN, "overlaps")),
    "hole between tensors": Variant(_header(_hole), (WEIGHTS, "hole")),
    "truncated": Variant(_truncate, (WEIGHTS, NORM, "truncated")),
    "bytes after the last tensor": Variant(_append, (WEIGHTS, NORM)),
    # The model's tensors
    "stored as integers": Variant(_set(NORM, np.zeros(64, np.int64)), (WEIGHTS, NORM, "I64")),
    "missing tensor": Variant(_tensors(lambda tensors: tensors.pop(DOWN)), ("missing", DOWN)),
    "extra tensor": Variant(_set("model.layers.2.extra", np.zeros(4, np.float32)), (WEIGHTS, "model.layers.2.extra")),
    "wrong shape": Variant(_set(NORM, np.zeros(32, np.float32)), (WEIGHTS, NORM, "[64]", "[32]")),
    "tensor of NaN": Variant(_set(NORM, np.full(64, np.nan, np.float32)), (WEIGHTS, NORM, "finite")),
    "large tensor of NaN": Variant(_set(DOWN, np.full((64, 128), np.nan, np.float32)), (WEIGHTS, DOWN, "finite")),
    "tensor of infinities": Variant(_set(NORM, np.full(64, np.inf, np.float32)), (WEIGHTS, NORM, "finite")),
    "head of another shape though tied": Variant(
        _set("lm_head.weight", np.zeros((384, 32), np.float32)), (WEIGHTS, "lm_head.weight")
    ),
}
