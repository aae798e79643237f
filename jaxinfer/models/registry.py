"""Which code serves which architecture: an explicit table, a call, and the entry-point group `jaxinfer.models`.

An entry point's name is the architecture as config.json spells it; its object is a Family.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import jax

from jaxinfer.errors import CheckpointError
from jaxinfer.models import dense as dense_model
from jaxinfer.models.config import ModelConfig

ENTRY_POINT_GROUP = "jaxinfer.models"


@dataclasses.dataclass(frozen=True)
class Family:
    """The functions that make a model, as documented in models/dense.py.

    config_from_hf(raw) -> ModelConfig        parameters(config) -> tree of ParamSpec
    forward(config, params, tokens, positions, kv, attend, linears) -> (hidden, kv)
    unembed(config, params, hidden)
    layers_stay: forward uses params.layers within linears.together alone, and params.final_norm is an array: then a
    step whose layers are one chain is given none of them.
    """

    config_from_hf: Callable[[Mapping[str, Any]], ModelConfig]
    parameters: Callable[..., Any]
    forward: Callable[..., tuple[jax.Array, Any]]
    unembed: Callable[[ModelConfig, Any, jax.Array], jax.Array]
    layers_stay: bool = False


dense = Family(
    dense_model.config_from_hf, dense_model.parameters, dense_model.forward, dense_model.unembed, layers_stay=True
)

MODELS: dict[str, Family] = {
    "LlamaForCausalLM": dense,
    "Qwen2ForCausalLM": dense,
    "Qwen3ForCausalLM": dense,
}


def register(architecture: str, family: Family) -> None:
    """Serve `architecture` with `family` from now on. Registering the same family again changes nothing.

    Raises ValueError if another family serves it already.
    """
    if MODELS.get(architecture, family) != family:
        raise ValueError(f"an architecture has one family, and {architecture!r} has one already; choose another name")
    MODELS[architecture] = family


def family_for(raw: Mapping[str, Any]) -> Family:
    """The family of a config.json, by its one entry in `architectures`.

    Raises CheckpointError when it is missing or not supported, with the nearest name and the list of supported ones.
    """
    plugins = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    supported = ", ".join(sorted({*MODELS, *plugins}))
    names = raw.get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise CheckpointError(
            f"config.json must name one architecture, got architectures={names!r}; supported are {supported}"
        )
    name = names[0]
    if name in MODELS:
        return MODELS[name]
    if name in plugins:
        return _load(plugins[name])
    near = difflib.get_close_matches(name, {*MODELS, *plugins}, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? " if near else ""
    raise CheckpointError(
        f"the architecture must be one of {supported}, got {name!r}; {hint}choose a checkpoint of a supported "
        f"architecture or register one (entry-point group {ENTRY_POINT_GROUP!r})"
    )


def _load(point: EntryPoint) -> Family:
    try:
        family = point.load()
    except Exception as error:  # a stranger's module: whatever it raises, the message must name it
        raise CheckpointError(
            f"entry point {point.name!r} of group {ENTRY_POINT_GROUP!r} must load, got {error!r} from {point.value}; "
            "fix or uninstall that package"
        ) from error
    if not isinstance(family, Family):
        raise CheckpointError(
            f"entry point {point.name!r} of group {ENTRY_POINT_GROUP!r} must be a Family, got {type(family).__name__} "
            f"from {point.value}; fix or uninstall that package"
        )
    return family
