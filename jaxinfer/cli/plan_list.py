"""`jaxinfer plan --list`: the models that can be planned without the hub, and which of them fit a device."""

from collections.abc import Mapping
from typing import Any

import click

from jaxinfer.bench.report import columns_of
from jaxinfer.cli.cards import TargetDevice, choose_target, describe, fits, model_on, plan_on
from jaxinfer.cli.checklist import reading
from jaxinfer.cli.options import as_given
from jaxinfer.config import Resolved, size_words
from jaxinfer.errors import ConfigError, DeviceError

HEAD = ("NAME", "WEIGHTS", "FITS")


def list_models(resolved: Resolved, name: str | None, memory: str | None) -> int:
    """Print the names alone, or with a device or a setting a line that says whether each model fits."""
    from jaxinfer.models.known import KNOWN

    given = {setting for setting, source in resolved.sources.items() if not source.startswith("JAXINFER_")}
    if "model" in given:
        raise ConfigError(f"--list is of every model, got {resolved.config.model!r}; leave one of the two out")
    if not given and name is None and memory is None:
        for model in sorted(KNOWN):
            click.echo(model)
        return 0
    with reading("the models' shapes and this machine"):
        target = choose_target(name, memory, resolved.config.device)
        rows = [(model, *fit_of(KNOWN[model], resolved, target)) for model in sorted(KNOWN)]
    click.echo(f"{describe(target)}\n{columns_of(HEAD, rows)}")
    return 0


def fit_of(facts: Mapping[str, Any], resolved: Resolved, target: TargetDevice) -> tuple[str, str]:
    """The bytes of the weights, and whether the model fits."""
    from jaxinfer.models.parameters import num_bytes
    from jaxinfer.models.registry import family_for
    from jaxinfer.runtime.cures import DoesNotFit, missing_words

    weights, config = "-", resolved.config
    try:
        family = family_for(facts)
        model, backends = model_on(config, facts, target, family)
        weights = size_words(num_bytes(family.specs(model), config.dtype_for(model.dtype)))
        return weights, fits(model, plan_on(config, target, model, family, backends))
    except DoesNotFit as error:
        cures = " or ".join(error.changes) or missing_words(error.missing_bytes)
        return weights, f"no: {as_given(cures, resolved.sources)}"
    except (ConfigError, DeviceError) as error:
        return weights, f"no: {as_given(str(error), resolved.sources).partition(', ')[0]}"
