"""`jaxinfer plan`: what a model needs of a device and what the device could give at best, from config.json alone."""

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.cards import (
    GIB,
    GPUS,
    TargetDevice,
    check_device,
    choose_target,
    describe,
    fits,
    memory_bytes,
    model_on,
    named_target,
    plan_on,
    usable_bytes,
)
from jaxinfer.cli.checklist import reading, show_table
from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.plan_list import list_models
from jaxinfer.cli.session import model_words, unnamed
from jaxinfer.config import EngineConfig, Resolved, counted, size_words
from jaxinfer.errors import CheckpointError, ConfigError, DeviceError, HubUnreachable

if TYPE_CHECKING:
    from jaxinfer.models.config import ModelConfig
    from jaxinfer.models.registry import Family
    from jaxinfer.runtime.backends import Backends
    from jaxinfer.runtime.cures import DoesNotFit
    from jaxinfer.runtime.memory import MemoryPlan

LEAST_S = 5e-5  # what the device needs less for, the launches of a step bind: no estimate is printed
CONTEXT = 1024  # tokens of every sequence in the throughput estimate
CARD_OPTIONS = {"for": "target", "memory": "memory"}


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Print the plan, or the models of --list. Raises what a start with these settings would raise."""
    config, name, memory = resolved.config, params["target"], params["memory"]
    if name is not None:
        named_target(name)  # what is misspelt is told at once
    check_device(name, config.device, resolved.sources)
    if memory is not None:
        memory_bytes(memory)
    if params["list"]:
        return list_models(resolved, name, memory)
    with reading("the model and this machine"):
        from jaxinfer.models.quantization_config import unfollowed
        from jaxinfer.models.registry import family_for
        from jaxinfer.runtime.cures import DoesNotFit

        target = choose_target(name, memory, config.device)
        facts, source = facts_of(config)
        family = family_for(facts)
        model, backends = model_on(config, facts, target, family)
    settings = [row for row in resolved.rows() if row[0] != "model"]  # the first line names it
    known = [("device", describe(target)), ("architecture", describe_model(model)), *settings]
    if (said := unfollowed(facts)) is not None:
        known.append(("not followed", f"{said}; keys and values are kept in {config.dtype_for(model.dtype)}"))
    show = partial(print_rows, resolved, params)
    try:
        plan = plan_on(config, target, model, family, backends)
    except DoesNotFit as error:
        needed: list[tuple[str, str]] = []
        with contextlib.suppress(ConfigError):  # of settings that are at odds nothing can be added up
            needed = needs(config, target, model, family, backends)
        show([("fits", "no"), *known, *needed, *source], [])
        with reading("which changes and cards would do"):
            cures = [
                *cures_here(error, name is None, target, memory),
                *cures_elsewhere(error, config, facts, family, target, memory),
            ]
        raise DeviceError(f"{error.fact}; {', or '.join(cures)}") from error
    rows = [row for row in plan.rows() if row[0] != "host pages" or plan.host_pages]
    hidden = {"compiled steps", *(name for name, _ in plan.backends.rows())}
    memory_rows = [row for row in rows if row[0] not in hidden]
    free = [(name, free_words(config, target) if name == "free before" else value) for name, value in memory_rows]
    answer = [("fits", fits(model, plan)), *together(plan), ("concurrency", concurrency(plan))]
    speed = throughput(model, plan, target, config.dtype_for(model.dtype))
    show([*answer, *speed, *known, *free], [*source, *(row for row in rows if row[0] in hidden)])
    return 0


def print_rows(
    resolved: Resolved, params: Mapping[str, Any], rows: list[tuple[str, str]], details: list[tuple[str, str]]
) -> None:
    """The model, the rows, the details (a terminal needs -v), and the way to other models where none is named."""
    if sys.stdout.isatty() and not params["verbose"]:
        details = [("more", f"{len(details)} facts of its steps and kernels: -v shows them")] if details else []
    click.echo(model_words(resolved.config) + unnamed(resolved, ""))
    show_table([*rows, *details], indent="  ")
    if "model" not in resolved.sources:
        target = "".join(f" --{option} {params[key]}" for option, key in CARD_OPTIONS.items() if params[key])
        click.echo(f"`jaxinfer plan --list{target or ' --for CARD'}` shows which models fit")


def needs(
    config: EngineConfig, target: TargetDevice, model: "ModelConfig", family: "Family", backends: "Backends"
) -> list[tuple[str, str]]:
    """The rows of memory of a model that does not fit: all of it, and what there is."""
    from jaxinfer.runtime.memory import needs_for

    free = usable_bytes(config, target)
    needed = needs_for(config, model, family, platform=target.platform, free=free, backends=backends)
    return [*needed.rows(), ("free before", free_words(config, target))]


def free_words(config: EngineConfig, target: TargetDevice) -> str:
    """What may be used of what is free, and which share that is."""
    usable = usable_bytes(config, target)
    if target.platform == "cpu" and config.gpu_memory_utilization != EngineConfig().gpu_memory_utilization:
        return f"{size_words(usable)}, all of it: gpu_memory_utilization is of GPUs"
    if usable == target.free_bytes:
        return size_words(usable)
    share = f"{config.gpu_memory_utilization:.0%} of {size_words(target.free_bytes)}"
    return f"{size_words(usable)}, {share} (gpu_memory_utilization)"


def cures_here(error: "DoesNotFit", is_here: bool, target: TargetDevice, memory: str | None) -> Iterator[str]:
    """What helps on the device that is planned for: settings, or more of its memory, or smaller weights."""
    from jaxinfer.runtime.cures import with_beside

    if error.changes:
        yield " or ".join(error.changes)
    if memory is not None and error.to_free:
        yield with_beside(error.beside, f"raise --memory to {enough_memory(target.free_bytes + error.to_free)}")
    elif is_here and error.to_free and not error.changes:
        yield with_beside(error.beside, f"free {size_words(error.to_free)} of memory")
    if error.smaller and not error.changes:
        yield error.smaller


def enough_memory(num_bytes: int) -> str:
    """As a value of --memory that is not less."""
    return f"{-(-num_bytes // GIB)}G" if num_bytes >= 4 * GIB else f"{-(-num_bytes // 2**20)}M"


def cures_elsewhere(
    error: "DoesNotFit",
    config: EngineConfig,
    facts: Mapping[str, Any],
    family: "Family",
    target: TargetDevice,
    memory: str | None,
) -> Iterator[str]:
    """Another edition of the model, another card or all of this one, another model."""
    from jaxinfer.models.known import KNOWN
    from jaxinfer.models.registry import family_for
    from jaxinfer_kernels.sm90 import HopperGpu

    cards: list[str] = []
    if target.platform == "gpu":
        edition = f"{config.model}-FP8"
        if (
            edition in KNOWN
            and not error.changes
            and _holds(config, KNOWN[edition], family_for(KNOWN[edition]), target)
        ):
            yield f"take {edition}" + ("" if HopperGpu.of(target) else " (slow on this GPU)")
        own = {target.key: dataclasses.replace(target, free_bytes=target.own_bytes or 0)}  # with --memory left out
        listed = {key: card for key, card in GPUS.items() if key not in own}
        for others in [own, listed] if memory else [listed]:
            if cards:
                break
            cards, settings = fewest_left_out(config, facts, family, others, is_as_asked=bool(error.changes))
            if cards:
                left_out = [*(["--memory"] if memory else []), *settings]
                change = f"leave out {' and '.join(left_out)}" if left_out else ""
                card = f"take a card that holds it (--for {', '.join(cards[:3])})" if others is not own else ""
                yield " and ".join(filter(None, [change, card]))
    if not error.changes:
        has_none = target.platform == "gpu" and not cards
        yield "choose a smaller model" + (" (no card of --for holds it alone)" if has_none else "")


def fewest_left_out(
    config: EngineConfig,
    facts: Mapping[str, Any],
    family: "Family",
    cards: Mapping[str, TargetDevice],
    *,
    is_as_asked: bool,
) -> tuple[list[str], tuple[str, ...]]:
    """The cards that hold the model, and the settings to leave out for it, as few as will do. No cards where all that
    may be left out is not enough.    is_as_asked: leave out nothing, as this device needs no more than that.
    """
    from jaxinfer.runtime.cures import sets_of_settings, sets_that_help_most, without

    def able(left_out: tuple[str, ...], among: Mapping[str, TargetDevice]) -> list[str]:
        return fitting_cards(without(config, left_out), facts, family, among)

    if (found := able((), cards)) or is_as_asked:
        return found, ()
    hopeful = {key: cards[key] for left_out in sets_that_help_most(config) for key in able(left_out, cards)}
    for left_out in sets_of_settings(config) if hopeful else ():
        if found := able(left_out, hopeful):
            return found, left_out
    return [], ()


def fitting_cards(
    config: EngineConfig, facts: Mapping[str, Any], family: "Family", cards: Mapping[str, TargetDevice]
) -> list[str]:
    """The cards on which these settings have a plan, the smallest first."""
    smallest_first = sorted(cards.items(), key=lambda item: item[1].free_bytes)
    return [key for key, card in smallest_first if _holds(config, facts, family, card)]


def _holds(config: EngineConfig, facts: Mapping[str, Any], family: "Family", target: TargetDevice) -> bool:
    from jaxinfer.runtime.memory import has_plan

    with contextlib.suppress(ConfigError):  # of a card without the kernels that were asked for
        model, backends = model_on(config, facts, target, family)
        free = usable_bytes(config, target)
        return has_plan(config, model, family, platform=target.platform, free=free, backends=backends)
    return False


def facts_of(config: EngineConfig) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """config.json, and a row that says so where it is the one that we ship. Raises CheckpointError."""
    from jaxinfer.checkpoint.resolve import Part, local_folder, resolve
    from jaxinfer.models.known import known_config
    from jaxinfer.models.overrides import OverriddenConfig

    known = known_config(config.model)
    if known is not None and config.revision is None and local_folder(config.model) is None:
        row = ("config.json", "its facts as jaxinfer ships them; --revision main asks the hub")
        return OverriddenConfig(known, config.hf_overrides or {}), [row]
    needs: tuple[Part, ...] = ("config",)
    try:
        checkpoint = resolve(
            config.model,
            revision=config.revision,
            download_dir=config.download_dir,
            needs=needs,
            overrides=config.hf_overrides,
        )
    except HubUnreachable as error:
        said = re.sub("(If not,|;) ", r"\1 see `jaxinfer plan --list`, ", str(error), count=1)  # as the first cure
        raise CheckpointError(said) from error
    return checkpoint.config, []


def describe_model(model: "ModelConfig") -> str:
    count = model.num_params
    size = f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"
    layers = counted(len(model.layers), "layer")
    return f"{model.architecture}, {size} parameters, {layers}, {model.max_position:,} positions"


def concurrency(plan: "MemoryPlan") -> str:
    """vLLM's line, which people size hardware with; where max_num_seqs binds before the pages do, that."""
    limits = plan.limits
    tokens = limits.cache_tokens
    if tokens >= limits.max_num_seqs * limits.max_model_len:
        requests = counted(limits.max_num_seqs, "request")
        return f"{requests} of {limits.max_model_len:,} tokens each, as max_num_seqs allows"
    return f"Maximum concurrency for {limits.max_model_len:,} tokens per request: {tokens / limits.max_model_len:.2f}x"


def together(plan: "MemoryPlan") -> list[tuple[str, str]]:
    """How many sequences of CONTEXT tokens are computed together, and what bounds them. Nothing where each may have its
    whole context, which `concurrency` says.
    """
    context, most = min(CONTEXT, plan.limits.max_model_len), plan.limits.max_num_seqs
    if plan.limits.cache_tokens >= most * plan.limits.max_model_len:
        return []
    if plan.limits.cache_tokens >= most * context:
        return [("together", f"{counted(most, 'sequence')} of {context:,} tokens, as many as max_num_seqs allows")]
    fitting = f"{counted(fitting_sequences(plan), 'sequence')} of {context:,} tokens, as many as the pages hold"
    return [("together", f"{fitting} (max_num_seqs allows {most})")]


def fitting_sequences(plan: "MemoryPlan") -> int:
    limits = plan.limits
    return min(limits.max_num_seqs, max(1, limits.cache_tokens // min(CONTEXT, limits.max_model_len)))


def throughput(model: "ModelConfig", plan: "MemoryPlan", target: TargetDevice, dtype: str) -> list[tuple[str, str]]:
    """Upper bounds: a decode step reads every weight and all keys and values once, a prompt token multiplies by all."""
    if not target.bytes_per_s:
        return [("speed", f"unknown device; one of --for {', '.join(GPUS)} has an estimate")]
    from jaxinfer.cache.spec import ITEMSIZE
    from jaxinfer.runtime.backends import rounds_activations

    # In fp8 Hopper multiplies twice as fast (H100's data sheet).
    flops = target.flops and target.flops * (2 if rounds_activations(model, plan.backends) else 1)
    looked_up = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size  # an untied embedding is not read
    read_bytes, params = plan.weights - looked_up * ITEMSIZE[dtype], model.num_params - looked_up
    context, num_together = min(CONTEXT, plan.limits.max_model_len), fitting_sequences(plan)
    if read_bytes / target.bytes_per_s < LEAST_S:
        return [("speed", "bound by the host: the device would read this model in less than 0.05 ms")]

    def decode_tokens_per_s(batch: int) -> float:
        memory_s = (read_bytes + batch * plan.layout.read_bytes(context)) / target.bytes_per_s
        compute_s = 2 * batch * params / flops if flops else 0.0
        return batch / max(memory_s, compute_s)

    alone, all_together = decode_tokens_per_s(1), decode_tokens_per_s(num_together)
    many = f"{_rate(all_together)} with {num_together} together (context {context:,})"
    rows = [("decode", f"at most {_rate(alone)} tokens/s alone, {many}")]
    if flops:
        prefill_s = 2 * context * params / flops
        if prefill_s >= LEAST_S:
            rows.append(("prefill", f"at least {prefill_s * 1e3:.1f} ms for {context:,} tokens"))
    return rows


def _rate(tokens_per_s: float) -> str:
    """No more than four digits, which is more than the estimate is worth."""
    return f"{tokens_per_s:,.1f}" if tokens_per_s < 1000 else f"{float(f'{tokens_per_s:.4g}'):,.0f}"


command = EngineCommand(
    "plan",
    run,
    [
        click.Option(
            ["target", "--for"],
            metavar="CARD",
            help=f"Plan for another device than this machine's: {', '.join(GPUS)} or cpu.",
        ),
        click.Option(
            ["--list"],
            is_flag=True,
            help="Name the models that need no hub; with --for, --memory or a setting, say which fit.",
        ),
        click.Option(["--memory"], metavar="N", help="Free bytes of the device, as in 80G.  [what it has]"),
        click.Option(["-v", "--verbose"], is_flag=True, help="Show the details at a terminal too."),
    ],
    help="Show what MODEL needs of a device and what it could give at best, from config.json alone.",
)
