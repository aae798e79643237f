"""`jaxinfer plan`: what a model needs of a device and what the device could give at best, from config.json alone."""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.checklist import reading, table
from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.session import model_words
from jaxinfer.config import EngineConfig, Resolved, counted, parse_int, size_words, unknown_name
from jaxinfer.errors import CheckpointError, ConfigError, DeviceError, HubUnreachable

if TYPE_CHECKING:
    from jaxinfer.models.config import ModelConfig
    from jaxinfer.models.registry import Family
    from jaxinfer.runtime.memory import MemoryPlan

GIB = 2**30
LEAST_S = 5e-5  # what the device needs less for, the launches of a step bind: no estimate is printed
LEAST_MEMORY = 2**20  # bytes
CONTEXT = 1024  # tokens of every sequence in the throughput estimate


@dataclasses.dataclass(frozen=True)
class TargetDevice:
    """A device to plan for. flops: of dense bfloat16 products; None is unknown. core_count: its multiprocessors.

    The names of what a jax.Device has as well are JAX's.
    """

    device_kind: str
    platform: str
    free_bytes: int
    bytes_per_s: float
    flops: float | None = None
    compute_capability: str = "unknown"
    core_count: int | None = None  # where our kernels run, as is the next
    shared_memory_per_block_optin: int | None = None


_HOPPER = 232_448  # bytes of shared memory
# Memory as nvidia-smi shows it, rounded down. Bandwidth, bfloat16 peak (dense, float32 sums) and capability: NVIDIA's
# data sheets of each card; for GeForce and RTX PRO the architecture white papers (Ampere GA102, Ada, Blackwell RTX).
# Checked on 2026-11-27: the peak of cards of 8.6, 8.9 and 12.0 is multiprocessors x 512 multiply-adds x boost clock,
# half of that on a GeForce; A10 to B200 as in citsjtu2020/LLM-Prof, hardware_spec.md, at 8434c8d1.
GPUS = {
    "b200": TargetDevice("NVIDIA B200", "gpu", 178 * GIB, 8.0e12, 2250e12, "10.0"),
    "h200": TargetDevice("NVIDIA H200", "gpu", 140 * GIB, 4.8e12, 989e12, "9.0", 132, _HOPPER),
    "h100": TargetDevice("NVIDIA H100", "gpu", 79 * GIB, 3.35e12, 989e12, "9.0", 132, _HOPPER),
    "h20": TargetDevice("NVIDIA H20", "gpu", 95 * GIB, 4.0e12, 148e12, "9.0", 78, _HOPPER),
    "a100": TargetDevice("NVIDIA A100", "gpu", 79 * GIB, 2.04e12, 312e12, "8.0"),
    "h100pcie": TargetDevice("NVIDIA H100 PCIe", "gpu", 79 * GIB, 2.04e12, 756e12, "9.0", 114, _HOPPER),
    "l40s": TargetDevice("NVIDIA L40S", "gpu", 44 * GIB, 0.864e12, 362e12, "8.9"),
    "l4": TargetDevice("NVIDIA L4", "gpu", 22 * GIB, 0.3e12, 121e12, "8.9"),
    "a10": TargetDevice("NVIDIA A10", "gpu", 22 * GIB, 0.6e12, 125e12, "8.6"),
    "rtxpro6000": TargetDevice("NVIDIA RTX PRO 6000 Blackwell", "gpu", 95 * GIB, 1.792e12, 503.8e12, "12.0"),
    "5090": TargetDevice("NVIDIA GeForce RTX 5090", "gpu", 31 * GIB, 1.792e12, 209.5e12, "12.0"),
    "4090": TargetDevice("NVIDIA GeForce RTX 4090", "gpu", 23 * GIB, 1.008e12, 165.2e12, "8.9"),
    "4060ti": TargetDevice("NVIDIA GeForce RTX 4060 Ti 16 GB", "gpu", 15 * GIB, 0.288e12, 44.1e12, "8.9"),
    "3090": TargetDevice("NVIDIA GeForce RTX 3090", "gpu", 23 * GIB, 0.936e12, 71e12, "8.6"),
}


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Print the plan. Raises what a start with these settings would raise."""
    config = resolved.config
    if params["target"] is not None:
        named_target(params["target"])  # what is misspelt is told at once
    if params["memory"] is not None:
        memory_bytes(params["memory"])
    with reading("the model and this machine"):
        from jaxinfer.models.quantization_config import unfollowed
        from jaxinfer.models.registry import family_for
        from jaxinfer.runtime.backends import as_computed, as_held
        from jaxinfer.runtime.memory import backends_for, plan_for

        target = choose_target(params["target"], params["memory"], config.device)
        facts, source = facts_of(config)
        family = family_for(facts)
        model = as_computed(config, family.model(facts, config.quantization), target)
        # as runtime/device.py sizes the pool
        share = config.gpu_memory_utilization if target.platform == "gpu" else 1.0
        free = int(target.free_bytes * share)
        try:
            backends = backends_for(config, model, target)
        except ConfigError as error:
            raise type(error)(with_target(str(error), params["target"])) from error
        model = as_held(model, backends)
    if (said := unfollowed(facts)) is not None:
        source.append(("not followed", f"{said}; keys and values are kept in {config.dtype_for(model.dtype)}"))
    rows = [("device", describe(target)), ("architecture", describe_model(model)), *source, *resolved.rows()]
    try:
        plan = plan_for(config, model, family, platform=target.platform, free=free, backends=backends)
    except (ConfigError, DeviceError) as error:
        cards = [card for card in fitting_cards(config, model, family) if GPUS[card].device_kind != target.device_kind]
        if target.platform == "gpu" and (cards or isinstance(error, DeviceError)):
            show(config, [*rows, *lacking(config, model, family, free_words(config, target, free), error)])
            said = with_cards(str(error), cards, is_here=params["target"] is None and params["memory"] is None)
            raise type(error)(with_memory(said, params["memory"])) from error
        if params["memory"] is not None and (cards or isinstance(error, DeviceError)):
            raise type(error)(with_memory(str(error), params["memory"])) from error
        raise
    rows += [
        (name, free_words(config, target, free) if name == "free before" else value)
        for name, value in plan.rows()
        if name != "host pages" or plan.host_pages
    ]
    rows.insert(2, ("fits", fits(model, plan)))
    rows += [("concurrency", concurrency(plan)), *throughput(model, plan, target, config.dtype_for(model.dtype))]
    show(config, rows)
    return 0


def show(config: EngineConfig, rows: list[tuple[str, str]]) -> None:
    for line in [model_words(config), *table(rows, indent="  ")]:
        click.echo(line)


def fits(model: "ModelConfig", plan: "MemoryPlan") -> str:
    """That the model fits, and with how much of its context."""
    length = plan.limits.max_model_len
    whole = (
        "its whole context" if length == model.max_position else f"{length:,} of its {model.max_position:,} positions"
    )
    return f"yes, with {whole}"


def lacking(
    config: EngineConfig, model: "ModelConfig", family: "Family", free: str, error: Exception
) -> list[tuple[str, str]]:
    """The rows of a model that does not fit."""
    from jaxinfer.models.parameters import num_bytes

    weights = num_bytes(family.specs(model), config.dtype_for(model.dtype))
    return [
        ("weights", size_words(weights)),
        ("free before", free),
        ("fits", f"no: {str(error).partition('; ')[0]}"),
    ]


def free_words(config: EngineConfig, target: TargetDevice, free: int) -> str:
    """What may be used of what is free, and which share that is."""
    if free == target.free_bytes:
        return size_words(free)
    share = f"{config.gpu_memory_utilization:.0%} of {size_words(target.free_bytes)}"
    return f"{size_words(free)}, {share} (gpu_memory_utilization)"


def fitting_cards(config: EngineConfig, model: "ModelConfig", family: "Family") -> list[str]:
    """The cards of --for on which these settings have a plan, the smallest first."""
    from jaxinfer.runtime.memory import backends_for, plan_for

    found = []
    for key, card in sorted(GPUS.items(), key=lambda item: item[1].free_bytes):
        free = int(card.free_bytes * config.gpu_memory_utilization)
        with contextlib.suppress(ConfigError, DeviceError):
            plan_for(config, model, family, platform="gpu", free=free, backends=backends_for(config, model, card))
            found.append(key)
    return found


def with_cards(error: str, cards: list[str], *, is_here: bool) -> str:
    """The error with cures for a card that is planned for: a setting, another card, a smaller model."""
    fact, _, cure = error.partition("; ")
    settings = [cure] if cure.startswith("lower") or is_here else []
    if not cards:
        return f"{fact}; {', or '.join([*settings, 'choose a smaller model'])} (no card of --for holds it alone)"
    other = f"take a card that holds it (--for {', '.join(cards[:3])})"
    return "; ".join([fact, ", or ".join([*settings, other, *([] if settings else ["choose a smaller model"])])])


def with_target(error: str, target: str | None) -> str:
    """The error with the cure of who gave --for: --device changes nothing of a card that is planned for."""
    return error if target is None else error.replace("set device to cpu", "say --for cpu")


def with_memory(error: str, memory: str | None) -> str:
    """The error with the first cure of who gave --memory: more of it. The machine's own memory is none."""
    fact, _, cure = error.partition("; ")
    cure = cure.removeprefix("free some memory, ").removesuffix(", or a larger machine")
    return error if memory is None else f"{fact}; raise --memory, now {memory}, or {cure}"


def facts_of(config: EngineConfig) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """config.json, and a row that says so where it is the one that we ship. Raises CheckpointError."""
    from jaxinfer.checkpoint.resolve import Part, local_folder, resolve
    from jaxinfer.models.known import known_config
    from jaxinfer.models.overrides import OverriddenConfig

    known = known_config(config.model)
    if known is not None and config.revision is None and local_folder(config.model) is None:
        row = ("config.json", "its facts as jaxinfer ships them, no hub was asked; --revision main asks the hub")
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
        shipped = "`jaxinfer plan --list` names the models whose facts jaxinfer ships"
        raise CheckpointError(f"{error}; {shipped}") from error
    return checkpoint.config, []


def show_names(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """The models that can be planned without the hub, a line each."""
    if value:
        from jaxinfer.models.known import KNOWN

        for name in sorted(KNOWN):
            click.echo(name)
        ctx.exit()


def choose_target(name: str | None, memory: str | None, device: str) -> TargetDevice:
    """The GPU or CPU to plan for: the one named, else this machine's first visible GPU, else its CPU."""
    from jaxinfer.runtime import nvidia

    named = None if name is None else named_target(name)
    gpus = [] if name or device == "cpu" else nvidia.visible_gpus(nvidia.list_gpus())
    if named is not None:
        target = named
    elif gpus:
        target = known_gpu(gpus[0])
    else:
        from jaxinfer.checkpoint.memory import available_host_bytes

        cpus = counted(os.cpu_count() or 1, "CPU")
        target = TargetDevice(f"this machine's {cpus}", "cpu", available_host_bytes(), read_speed())
    if memory is None:
        return target
    return dataclasses.replace(target, free_bytes=memory_bytes(memory))


def memory_bytes(text: str) -> int:
    """The value of --memory. A number of so few bytes has lost its unit. Raises ConfigError."""
    try:
        num_bytes = parse_int(text)
    except ValueError:
        raise ConfigError(f"--memory must be bytes, got {text!r}; write it as in 80G") from None
    if num_bytes < LEAST_MEMORY:
        cure = f"add a unit: --memory {text}G" if text.isdecimal() and num_bytes else "write it as in 80G"
        raise ConfigError(f"--memory must be at least 1M of bytes, as in 80G, got {text!r}; {cure}")
    return num_bytes


def named_target(name: str) -> TargetDevice | None:
    """A card by its name, with or without the maker's words and its memory; None for the CPU. Raises ConfigError."""
    words, _, memory = re.sub(r"[ _-]+(\d+)[ _-]?gi?b?$", r"\n\1", name.strip().lower()).partition("\n")
    key = re.sub(r"^(nvidia)?(geforce)?(rtx(?=\d))?", "", re.sub(r"[ _-]", "", words))
    if key not in {*GPUS, "cpu"}:
        raise ConfigError(unknown_name(key, {*GPUS, "cpu"}, "--for"))
    target = GPUS.get(key)
    if target is not None and memory and not 0.9 * int(memory) <= target.free_bytes / GIB <= int(memory):
        fact = f"--for {key} has {target.free_bytes // GIB} GiB free, got {name!r}"
        raise ConfigError(f"{fact}; say --for {key} --memory {memory}G")
    return target


def known_gpu(gpu: Any) -> TargetDevice:
    """The GPU with what is free on it now; its speed is known if its name is."""
    words = gpu.name.lower().replace("-", " ").split()
    names = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    known = GPUS.get(max(names & {*GPUS}, key=len, default=""), TargetDevice("", "gpu", 0, 0.0))
    return dataclasses.replace(known, device_kind=gpu.name, free_bytes=gpu.free_bytes)


def read_speed(num_bytes: int = 64 * 2**20) -> float:
    """Bytes per second that all CPUs together read from memory, measured now in about 0.2 s."""
    import numpy as np

    threads = os.cpu_count() or 1
    arrays = [np.ones(num_bytes // 8, np.float64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(3):
            began_s = time.perf_counter()
            list(pool.map(np.max, arrays))
            seconds.append(time.perf_counter() - began_s)
    return threads * num_bytes / min(seconds)


def describe(target: TargetDevice) -> str:
    speed = f", {target.bytes_per_s / 1e9:,.0f} GB/s" if target.bytes_per_s else ", of unknown speed"
    flops = f", {target.flops / 1e12:.0f} TFLOP/s in bfloat16" if target.flops else ""
    free = f"{target.free_bytes / GIB:.1f} GiB" if target.free_bytes >= GIB else size_words(target.free_bytes)
    return f"{target.device_kind}, {free} free{speed}{flops}"


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


def throughput(model: "ModelConfig", plan: "MemoryPlan", target: TargetDevice, dtype: str) -> list[tuple[str, str]]:
    """Upper bounds: a decode step reads every weight and all keys and values once, a prompt token multiplies by all."""
    if not target.bytes_per_s:
        return [("speed", f"unknown device; one of --for {', '.join(GPUS)} has an estimate")]
    from jaxinfer.cache.spec import ITEMSIZE

    itemsize = ITEMSIZE[dtype]
    embedding = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size * itemsize
    read_bytes = plan.weights - embedding  # an untied embedding is looked up, not read through
    limits = plan.limits
    context = min(CONTEXT, limits.max_model_len)
    together = min(limits.max_num_seqs, max(1, limits.cache_tokens // context))

    if read_bytes / target.bytes_per_s < LEAST_S:
        return [("speed", "bound by the host: the device would read this model in less than 0.05 ms")]

    def decode_tokens_per_s(batch: int) -> float:
        memory_s = (read_bytes + batch * plan.layout.read_bytes(context)) / target.bytes_per_s
        compute_s = 2 * batch * read_bytes / itemsize / target.flops if target.flops else 0.0
        return batch / max(memory_s, compute_s)

    alone, all_together = decode_tokens_per_s(1), decode_tokens_per_s(together)
    many = f"{_rate(all_together)} with {together} (context {context:,})"
    rows = [("decode", f"at most {_rate(alone)} tokens/s alone, {many}")]
    if target.flops:
        prefill_s = 2 * context * read_bytes / itemsize / target.flops
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
            is_eager=True,
            expose_value=False,
            callback=show_names,
            help="Name the models that need no hub.",
        ),
        click.Option(["--memory"], metavar="N", help="Free bytes of the device, as in 80G.  [what it has]"),
    ],
    help="Show what MODEL needs of a device and what it could give at best, from config.json alone.",
)
