"""All tensors of a checkpoint by name, whatever files they lie in, and the check that they are the model's.

Only headers are read here. Every fault is reported at once, with the file and the tensor it is in.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxinfer.checkpoint.safetensors_file import SafetensorsFile, TensorEntry, shown
from jaxinfer.errors import CheckpointError
from jaxinfer.models.config import clipped
from jaxinfer.models.parameters import Beside, ParamSpec, Scale

BODY = "model."  # before the names of a whole model's tensors, all but the head's
# Recomputed from the config by every implementation, and saved by old versions of transformers all the same; and the
# scales of keys and values in 8 bits, which are 16 bits here.
HARMLESS = re.compile(
    r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
    r"|(model\.)?layers\.\d+\.self_attn\.(([kv]_scale)|([kv]_proj\.(output|[kv])_scale))"
)


class Weights:
    """The tensors of one or more validated files; a name is in exactly one of them."""

    def __init__(self, paths: tuple[Path, ...], weight_map: Mapping[str, str] | None = None) -> None:
        """Open every file. weight_map: tensor name to file name, as the index states it; None when there is none.

        Raises CheckpointError for a broken file, a tensor in two files, or an index that disagrees with the files.
        """
        self.paths = paths
        self._files = {path: SafetensorsFile(path) for path in paths}
        self._entries: dict[str, TensorEntry] = {}
        faults = []
        for file in self._files.values():
            for name, entry in file.tensors.items():
                if name in self._entries:
                    faults.append(f"{entry} must be in one file, it is also in {self._entries[name].path.name}")
                self._entries[name] = entry
        faults += [] if weight_map is None else self._index_faults(weight_map)
        if faults:
            _raise(paths, "the files and their index must agree", clipped(faults))

    def _index_faults(self, weight_map: Mapping[str, str]) -> list[str]:
        found = {path.name: file.tensors for path, file in self._files.items()}
        return [
            f"{filename}: tensor {shown(name)} must be there, as the index says, it is not"
            for name, filename in weight_map.items()
            if name not in found[filename]
        ]

    def __getitem__(self, name: str) -> TensorEntry:
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def view(self, name: str) -> np.ndarray:
        """The tensor as a read-only array over the file; bytes are read when touched."""
        entry = self._entries[name]
        return self._files[entry.path].view(entry)

    def will_need(self, name: str, rows: range) -> None:
        """Start reading rows of the tensor from the disk, without waiting."""
        entry = self._entries[name]
        self._files[entry.path].will_need(entry, rows)

    def release(self, name: str, rows: range) -> None:
        """Unmap the pages of these rows; a later touch maps them again."""
        entry = self._entries[name]
        self._files[entry.path].release(entry, rows)


def leaf_specs(spec_tree: object) -> list[ParamSpec]:
    """The leaves of a tree of ParamSpec, in the order of jax.tree."""
    return jax.tree.leaves(spec_tree, is_leaf=lambda node: isinstance(node, ParamSpec))


def named_as_stored(spec_tree: Any, weights: Weights) -> Any:
    """The specs with names as the files have them: a model that was saved as its body has no `model.` before them."""

    def stored(name: str) -> str:
        short = name.removeprefix(BODY)
        return short if name not in weights and short in weights else name

    def all_stored(groups: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(map(stored, group)) for group in groups)

    def renamed(spec: ParamSpec) -> ParamSpec:
        beside = tuple(dataclasses.replace(one, names=all_stored(one.names)) for one in spec.beside)
        return dataclasses.replace(spec, sources=all_stored(spec.sources), beside=beside)

    return jax.tree.map(renamed, spec_tree)


def check_tensors(spec_tree: object, weights: Weights) -> None:
    """Raise CheckpointError unless the weights are exactly the model's: all there, of its shapes, nothing left over.

    Left-overs that mean nothing are let pass: rotary inv_freq, and an lm_head.weight of the embedding's shape that
    the model does not use because it ties the two.
    """
    specs = leaf_specs(spec_tree)
    sources = [(name, spec, index) for spec in specs for group in spec.sources for index, name in enumerate(group)]
    wanted = {name: spec.source_shape(index) for name, spec, index in sources}
    beside = {
        name: (one, index)
        for spec in specs
        for one in spec.beside
        for group in one.names
        for index, name in enumerate(group)
        if name not in wanted and name in weights
    }
    missing = [
        f"missing: {shown(name)} of shape {list(shape)}" for name, shape in wanted.items() if name not in weights
    ]
    unexpected = [
        f"{weights[name]} is not part of the model in config.json"
        for name in weights
        if name not in wanted and name not in beside and not _is_harmless(name, weights, wanted)
    ]
    held = [(weights[name], spec, index) for name, spec, index in sources if name in weights]
    wrong = [
        f"{entry} must have shape {list(spec.source_shape(index))}, got {list(entry.shape)}"
        for entry, spec, index in held
        if not spec.takes(index, entry.shape)
    ]
    wrong += [
        f"{entry} must be stored as {', '.join(spec.types)}, got {entry.dtype}"
        for entry, spec, _ in held
        if entry.dtype not in spec.types
    ]
    wrong += [fault for name, (one, index) in beside.items() for fault in _not_a_list(weights[name], one, index)]
    faults = clipped(missing) + clipped(unexpected) + clipped(wrong)
    if not faults:  # numbers are looked at where shapes and types are right: else there may be any amount of them
        faults = clipped(
            [fault for entry, spec, _ in held if spec.scale for fault in _not_scales(entry, spec.scale, weights)]
            + [fault for name, (one, _) in beside.items() for fault in _not_as_said(weights[name], one.holds, weights)]
        )
    if faults:
        _raise(weights.paths, "the tensors must be exactly those of the model in config.json", faults)


def _not_scales(entry: TensorEntry, law: Scale, weights: Weights) -> list[str]:
    values = weights.view(entry.name).astype(np.float32)
    weights.release(entry.name, range(entry.shape[0] if entry.shape else 1))
    laws = {"above 0": values > 0, "0 or above": values >= 0, "not 0": values != 0, "below 253": values < 253}
    bad = values[~(np.isfinite(values) & laws[law])]
    if not bad.size:
        return []
    return [f"{entry} must hold finite numbers {law}, {bad.size} of its {values.size} are not, as {bad.flat[0]}"]


def _not_a_list(entry: TensorEntry, law: Beside, index: int) -> list[str]:
    if not law.lengths or (entry.shape == (law.lengths[index],) and entry.dtype in law.types):
        return []
    wanted = f"a list of {law.lengths[index]} of {' or '.join(law.types)}"
    return [f"{entry} must be {wanted}, got {list(entry.shape)} of {entry.dtype}"]


def _not_as_said(entry: TensorEntry, holds: str | int, weights: Weights) -> list[str]:
    """holds: as Beside.holds."""
    if holds == "anything":
        return []
    values = weights.view(entry.name)
    if isinstance(holds, str):
        return [f"{entry} must be 0, as the model has no such bias; it is not"] if values.astype(bool).any() else []
    if np.array_equal(values, np.arange(len(values)) // holds):
        return []
    return [f"{entry} must count groups of {holds} columns in order, it does not: desc_act is not supported"]


def _is_harmless(name: str, weights: Weights, wanted: Mapping[str, tuple[int, ...]]) -> bool:
    if name == "lm_head.weight":
        embedding = "embed_tokens.weight"
        return weights[name].shape == wanted.get(BODY + embedding, wanted.get(embedding))
    return HARMLESS.fullmatch(name) is not None


def _raise(paths: tuple[Path, ...], law: str, faults: list[str]) -> None:
    lines = "".join(f"\n  - {fault}" for fault in faults)
    raise CheckpointError(
        f"{paths[0].parent}: {law}:{lines}\ndownload the checkpoint again, or correct its config.json or --hf-overrides"
    )
