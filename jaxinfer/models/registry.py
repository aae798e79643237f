"""Which code serves which architecture: an explicit table, a call, and the entry-point group `jaxinfer.models`.

An entry point's name is the architecture as config.json spells it; its object is a Family.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import jax

from jaxinfer.config import Quantization
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.layers.products import Products
from jaxinfer.models import dense as dense_model
from jaxinfer.models.as_published import as_published
from jaxinfer.models.config import ModelConfig, first_architecture, shown
from jaxinfer.models.features import features_of
from jaxinfer.models.parameters import quantized_matrices
from jaxinfer_kernels.linear.quantized import Format

ENTRY_POINT_GROUP = "jaxinfer.models"


@dataclasses.dataclass(frozen=True)
class Family:
    """The functions that make a model, as documented in models/dense.py.

    config_from_hf(raw) -> ModelConfig        parameters(config) -> tree of ParamSpec, before they are quantized
    forward(config, params, batch, cache) -> (hidden, cache)        unembed(config, params, hidden, products)
    layers_stay: forward gives params.layers to products, norms and attention alone, and params.final_norm is an array:
    then a step whose layers are one launch sequence finds them by address.
    """

    config_from_hf: Callable[[Mapping[str, Any]], ModelConfig]
    parameters: Callable[..., Any]
    forward: Callable[..., tuple[jax.Array, Any]]
    unembed: Callable[[ModelConfig, Any, jax.Array, Products], jax.Array]
    layers_stay: bool = False

    def __post_init__(self) -> None:
        """Raises TypeError for functions of another signature, as before there was jaxinfer/layers."""
        _takes(
            "forward",
            self.forward,
            ("config", "params", "batch", "cache"),
            "tokens and positions are batch.tokens and batch.positions, attend is jaxinfer.layers.attention.attention, "
            "which is given the product of q, k and v, and linears are jaxinfer.layers.linear's",
        )
        _takes(
            "unembed",
            self.unembed,
            ("config", "params", "hidden", "products"),
            "logits are products.logits(hidden, matrix)",
        )

    def specs(self, config: ModelConfig) -> Any:
        """The tree of ParamSpec of what is held.

        Raises ConfigError where nothing can be quantized as config says; CheckpointError where matrices that are fused
        are not stored alike.
        """
        if config.published is not None:
            rounded = None if config.quantization is None else Format(config.quantization)
            return as_published(self.parameters(config), config.published, rounded)
        specs = jax.tree.map(lambda spec: spec.quantized(config.quantization), self.parameters(config))
        if config.quantization and not quantized_matrices(specs):
            raise ConfigError(
                f"quantization {config.quantization} needs a family whose parameters say what may be quantized, "
                f"{config.architecture}'s do not; leave it out"
            )
        return specs

    def model(self, raw: Mapping[str, Any], quantization: Quantization = "auto") -> ModelConfig:
        """What config.json and the setting make. Raises CheckpointError; ConfigError for a second quantization."""
        config = self.config_from_hf(raw)
        if quantization == "auto":
            return config
        if config.published is not None:
            raise ConfigError(
                f"quantization must be auto for weights that are quantized already ({config.published}), got "
                f"{quantization}; leave it out, or take the original in bfloat16"
            )
        return dataclasses.replace(config, quantization=quantization)


def _takes(name: str, function: Callable[..., Any], arguments: tuple[str, ...], cure: str) -> None:
    taken = inspect.signature(function)
    try:
        taken.bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"a family's {name} must take ({', '.join(arguments)}), got {taken}; {cure} (docs/adding-a-model.md)"
        ) from error


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
    """The family of a config.json, by the first of its `architectures` or, where there is none, by its model_type.

    Raises CheckpointError when there is neither or it is not supported, with what the model has that ours do not.
    """
    plugins = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    supported = ", ".join(sorted({*MODELS, *plugins}))
    names = raw.get("architectures")
    given = first_architecture(raw)
    name = given if given in {*MODELS, *plugins} else dense_model.architecture_of(raw)
    kind = raw.get("model_type")
    if not isinstance(name, str) and (names not in (None, []) or not isinstance(kind, str)):
        raise CheckpointError(
            f"config.json must name its architecture, got architectures={shown(names)}; supported are {supported}"
        )
    if name in MODELS:
        return MODELS[name]
    if name in plugins:
        return _load(plugins[name])
    fact = shown(name) if isinstance(name, str) else f"none and model_type {shown(kind)}"
    features = " and ".join(features_of(name or str(kind), raw))
    reason = f"has {features}, not supported here" if features else "is of another family"
    raise CheckpointError(
        f"the architecture must be one of {supported}, got {fact}, which {reason}; choose a checkpoint of a "
        f"supported architecture or register one (entry-point group {ENTRY_POINT_GROUP!r})"
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
