"""quantization_config of config.json: how a checkpoint that is quantized already stores its matrices.

Sources: transformers' FineGrainedFP8Config (quant_method fp8), AutoFP8, compressed-tensors, whose older name for the
section is compression_config, AutoAWQ's gemm, GPTQ as AutoGPTQ, GPTQModel and AutoRound store it, and NVIDIA's
ModelOpt. What is not read is refused by its name, with what to take instead.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxinfer.models.config import CHECK, HFConfig, is_off, is_same, shown
from jaxinfer.models.module_patterns import MOST_WAYS, ways
from jaxinfer.models.published import CLASS, PATTERN, Fp4, Fp8, Int4, Int8, Packing, Published, Scheme, Sharing

KEYS = ("quantization_config", "compression_config")
MODELOPT = "modelopt"
FILE = "of_file"  # beside what another file than config.json says: its name
ELSE = "take a checkpoint in FP8 (e4m3), AWQ or GPTQ of 4 bits, or the original in bfloat16"
_OTHERS = {
    "bitsandbytes": f"bitsandbytes is not supported; {ELSE}",
    "gguf": f"GGUF is not supported; {ELSE}",
}
_OF_CACHE = ("kv_cache_quant_algo", "kv_cache_scheme")
_CLASSES = (CLASS,)
_GROUPS = (32, 64, 128)
# how a tool made the file, or which kernels run it
_OF_TOOLS = frozenset(
    ["backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment", "damp_percent"]
    + ["dataset", "disable_exllama", "do_fuse", "exllama_config", "fuse_max_seq_len", "max_input_length", "meta"]
    + ["model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block", "mse"]
    + ["modules_to_fuse", "pad_token_id", "static_groups", "tokenizer", "true_sequential", "use_cuda_fp16"]
    + ["use_exllama", "exllama_version", "quantizer"]
)
_OF_GPTQMODEL = frozenset(
    ["act_group_aware", "auto_forward_data_parallel", "compute_device_filter", "device", "fail_safe", "failsafe"]
    + ["foem", "gptaq", "gptaq_alpha", "hyb_act", "mock_quantization", "offload_to_disk", "offload_to_disk_path"]
    + ["pack_impl", "parallel_packing", "process", "scale_search", "uri", "v2", "v2_alpha", "v2_memory_device"]
    + ["vram_strategy"]
)
_OF_AUTOROUND = frozenset(
    ["act_bits", "act_data_type", "act_dynamic", "act_group_size", "act_sym", "amp", "autoround_version"]
    + ["dynamic_max_gap", "enable_alg_ext", "enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input"]
    + ["enable_torch_compile", "gradient_accumulate_steps", "iters", "low_cpu_mem_usage", "low_gpu_mem_usage", "lr"]
    + ["lr_scheduler", "minmax_lr", "model_free", "not_use_best_mse", "nsamples", "provider", "quant_block_list"]
    + ["sampler", "scale_dtype", "seed", "seqlen", "supported_types", "to_quant_block_names"]
)
_OF_4_BITS = _OF_TOOLS | _OF_GPTQMODEL | _OF_AUTOROUND
_IS_NAME = re.compile(r"[\w.-]+").fullmatch
_OF_MODELOPT: dict[str, Scheme] = {"FP8": Fp8("tensor"), "NVFP4": Fp4("modelopt")}
_SHARINGS: tuple[Sharing, ...] = ("block", "channel", "tensor")


def published_from_hf(config: HFConfig) -> Published | None:
    """How the checkpoint is quantized; None where it is not, or where that is refused."""
    for key in KEYS:
        if not _quantizes(config.value(key)):
            continue
        section = _section(config, key)
        if section is None:
            return None
        method = section.value("quant_method")
        read = _READERS.get(method) if isinstance(method, str) else None
        if read is None:
            names = ", ".join(_READERS)
            section.refuse("quant_method", f"must be one of {names}", _OTHERS.get(str(method), ELSE))
            return None
        published = read(section)
        if published is not None and _ways(published) > MOST_WAYS:
            law = f"patterns that may be tried in at most {MOST_WAYS} ways, they have more"
            config.faults.append(f"{key} must have {law}; name modules, or repeat less in patterns")
            return None
        return published
    return None


def _section(config: HFConfig, key: str) -> HFConfig | None:
    """The section, whose faults name the file that it is from."""
    given = config.value(key)
    if isinstance(given, dict) and isinstance(given.get(FILE), str):
        rest = {name: value for name, value in given.items() if name != FILE}
        return HFConfig(rest, prefix=f"{given[FILE]}: ", faults=config.faults)
    return config.section(key)


def unfollowed(raw: Mapping[str, Any]) -> str | None:
    """What a checkpoint says of how keys and values are stored, which nobody here follows; None where it says nothing.

    raw: a config.json, as `read_config` gives it.
    """
    for section in (raw.get(key) for key in KEYS if isinstance(raw.get(key), dict)):
        file = section.get(FILE, "config.json")
        inner = section.get("quantization")
        for rules in (inner, section) if isinstance(inner, dict) else (section,):
            for key in _OF_CACHE:
                if not is_off(rules.get(key)):
                    return f"{key} {shown(rules[key])} of {file}"
    return None


def _ways(published: Published) -> int:
    """In which a module is looked for at most."""
    names = [*published.excluded, *(name for names, _ in published.groups for name in names)]
    return sum(ways(name.removeprefix(PATTERN)) if name.startswith(PATTERN) else 1 for name in names)


def quantization_words(raw: Any) -> str | None:
    """How a config.json says that its checkpoint is quantized, for people; None where it is not."""
    if not any(_quantizes(raw.get(key)) for key in KEYS):
        return None
    config = HFConfig(raw)
    published = published_from_hf(config)
    if published is not None and not config.faults:
        return str(published)
    section = next(raw[key] for key in KEYS if _quantizes(raw.get(key)))
    return str(section.get("quant_method", "quantized")) if isinstance(section, dict) else "quantized"


def _quantizes(section: Any) -> bool:
    """Whether a section says that weights are quantized: not where all of it, or each of its switches, is off."""
    if not isinstance(section, dict):
        return not is_off(section)
    if section.get("quant_method") == "none" or all(map(is_off, section.values())):
        return False
    switches = [section[key] for key in ("load_in_4bit", "load_in_8bit") if key in section]
    return section.get("quant_method") not in (None, "bitsandbytes") or not switches or not all(map(is_off, switches))


def _fp8(section: HFConfig) -> Published | None:
    """FineGrainedFP8, and AutoFP8 without blocks. Activations stay in 16 bits here, whatever scheme is named."""
    section.must_be("fmt", ("e4m3", "float8_e4m3fn"), f"fp8 of e5m2 is not supported; {ELSE}")
    section.must_be("activation_scheme", ("dynamic", "static"), CHECK)
    section.must_be("is_checkpoint_fp8_serialized", (True,), "the weights must be stored in fp8")
    section.must_be("scale_fmt", ("ue8m0", "float"), CHECK)
    section.value("kv_cache_scheme")
    block = section.value("weight_block_size")
    section.must_be("weight_block_size", ([128, 128],), ELSE)
    excluded = (*_names(section, "modules_to_not_convert"), *_names(section, "ignored_layers"))
    section.finish(frozenset(["dequantize"]))
    scheme = Fp8("tensor") if block is None else Fp8("block", "weight_scale_inv")
    return Published(((_CLASSES, scheme),), excluded)


def _compressed(section: HFConfig) -> Published | None:
    """compressed-tensors: groups of modules, each with the arguments of its weights."""
    section.must_be("quantization_status", ("compressed", "frozen"), CHECK)
    for key, what in (("sparsity_config", "sparse weights (2:4)"), ("transform_config", "rotated weights")):
        given = section.value(key)
        if not is_off(given) and not (isinstance(given, dict) and given.get("format") == "dense"):
            section.refuse(key, "must be absent", f"{what} are not supported; {ELSE}")
    section.value("kv_cache_scheme")
    whole = section.value("format")
    groups = section.section("config_groups")
    if groups is None:
        section.refuse("config_groups", "must name the groups of modules", CHECK)
        return None
    found = []
    for name in groups.names():
        group = groups.section(name)
        if group is not None and (read := _group(group, whole)):
            found.append(read)
    excluded = _names(section, "ignore")
    section.finish(frozenset(["global_compression_ratio", "version"]))
    return Published(tuple(found), excluded, head=True)


def _group(group: HFConfig, whole: Any) -> tuple[tuple[str, ...], Scheme] | None:
    """A group's modules, and how their weights are stored.    whole: the format of all groups that name none."""
    targets = _names(group, "targets")
    for key in ("input_activations", "output_activations"):
        group.value(key)
    own = group.value("format")
    form = whole if own is None else own
    weights = group.section("weights")
    if weights is None:
        group.refuse("weights", "must say how weights are quantized", CHECK)
        return None
    group.finish()
    kind, bits = weights.value("type"), weights.value("num_bits")
    weights.must_be("dynamic", (False,), CHECK)
    scheme: Scheme | None = None
    if is_same((form, kind, bits), ("float-quantized", "float", 8)):
        scheme = _float(weights)
    elif is_same((form, kind, bits), ("pack-quantized", "int", 4)):
        scheme = _packed(weights)
    elif is_same((form, kind, bits), ("int-quantized", "int", 8)):
        scheme = _int8(weights, packed=False)
    elif is_same((form, kind, bits), ("pack-quantized", "int", 8)):
        scheme = _int8(weights, packed=True)
    elif is_same((form, kind, bits), ("nvfp4-pack-quantized", "float", 4)):
        scheme = _fp4(weights, Fp4("compressed-tensors"), "tensor_group")
    elif is_same((form, kind, bits), ("mxfp4-pack-quantized", "float", 4)):
        scheme = _fp4(weights, Fp4("compressed-tensors", mx=True), "group")
    else:
        fact = f"format {shown(form)} of {shown(bits)} bits and type {shown(kind)}"
        law = (
            "must be those of float-quantized (8 bits, float), int-quantized (8, int), pack-quantized (4 or 8, int) or "
            "nvfp4-pack-quantized and mxfp4-pack-quantized (4, float)"
        )
        group.refuse("weights", f"{law}, they are {fact}", ELSE)
        return None
    weights.finish(frozenset(["observer", "observer_kwargs", "scale_dtype", "zp_dtype"]))
    return None if scheme is None else (targets, scheme)


def _float(weights: HFConfig) -> Fp8 | None:
    weights.must_be("symmetric", (True,), f"weights with zero points are not supported in fp8; {ELSE}")
    strategy = weights.value("strategy")
    if strategy not in _SHARINGS:
        weights.refuse("strategy", f"must be one of {', '.join(_SHARINGS)}", ELSE)
        return None
    weights.must_be("block_structure", ([128, 128], "128x128") if strategy == "block" else (), ELSE)
    for key in ("group_size", "actorder"):
        weights.value(key)
    return Fp8(strategy)


def _int8(weights: HFConfig, *, packed: bool) -> Int8 | None:
    weights.must_be("symmetric", (True,), f"weights with zero points are not supported in int8; {ELSE}")
    weights.must_be("block_structure", (), ELSE)
    for key in ("group_size", "actorder"):
        weights.value(key)
    strategy = weights.value("strategy")
    if strategy not in ("channel", "tensor"):
        weights.refuse("strategy", "must be one of channel, tensor", f"int8 in groups is not supported; {ELSE}")
        return None
    return Int8(strategy, packed)


def _fp4(weights: HFConfig, scheme: Fp4, strategy: str) -> Fp4:
    laws = dict(symmetric=True, strategy=strategy, group_size=scheme.group)
    for key, law in laws.items():
        weights.must_be(key, (law,), ELSE)
    for key in ("block_structure", "actorder"):
        weights.must_be(key, (), ELSE)
    return scheme


def _packed(weights: HFConfig) -> Int4 | None:
    strategy = weights.value("strategy")
    if strategy not in ("group", "channel"):
        weights.refuse("strategy", "must be one of group, channel", ELSE)
    size = _group_size(weights)
    weights.must_be("block_structure", (), ELSE)
    # with static or weight the file has its columns in order all the same
    weights.must_be("actorder", ("weight", "static", False), f"columns in another order are not supported; {ELSE}")
    zeros = not weights.flag("symmetric", True)
    return Int4("compressed-tensors", size if strategy == "group" else None, zeros)


def _group_size(section: HFConfig) -> int | None:
    """Columns that share a scale; None for all of them."""
    size = section.value("group_size")
    if size is not None and not any(is_same(size, one) for one in (-1, *_GROUPS)):
        section.refuse("group_size", f"must be one of {', '.join(map(str, _GROUPS))}, or -1 for all columns", ELSE)
        return None
    return None if size == -1 else size


def _awq(section: HFConfig) -> Published | None:
    _four_bits(section)
    section.must_be("version", ("gemm", "GEMM"), f"other packings of AWQ are not supported; {ELSE}")
    section.must_be("zero_point", (True,), f"AWQ without zero points is not supported; {ELSE}")
    _form(section, "awq", ("gemm", "GEMM"))
    section.flag("sym", True)
    excluded = (*_names(section, "modules_to_not_convert"), *_dynamic(section))
    scheme = Int4("awq", _group_size(section), True)
    section.finish(_OF_4_BITS)
    return Published(((_CLASSES, scheme),), excluded)


def _gptq(section: HFConfig) -> Published | None:
    _four_bits(section)
    section.must_be("is_marlin_format", (False,), f"weights in Marlin's order are not supported; {ELSE}")
    packing: Packing = "gptq_v2" if _form(section, "gptq", ("gptq", "gptq_v2")) == "gptq_v2" else "gptq"
    scheme = Int4(packing, _group_size(section), True)
    section.flag("sym", True)
    excluded = _dynamic(section)
    section.finish(_OF_4_BITS)
    return Published(((_CLASSES, scheme),), excluded)


def _auto_round(section: HFConfig) -> Published | None:
    """AutoRound's own section, whose files are GPTQ's or AWQ's."""
    _four_bits(section)
    packings: dict[Any, Packing] = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
    form = section.value("packing_format")
    if not isinstance(form, str) or form not in packings:
        section.refuse("packing_format", f"must be one of {', '.join(packings)}", ELSE)
        return None
    scheme = Int4(packings[form], _group_size(section), True)
    section.flag("sym", True)
    excluded = _in_16_bits(section, "extra_config")
    section.finish(_OF_4_BITS)
    return Published(((_CLASSES, scheme),), excluded)


def _modelopt(section: HFConfig) -> Published | None:
    """ModelOpt's, which has it under `quantization` in a file of its own, as its older versions left it."""
    rules = section.section("quantization") or section
    section.value("producer")
    for key in _OF_CACHE:
        rules.value(key)
    algo = rules.value("quant_algo")
    if algo is None and rules is not section:  # of keys and values alone
        return None
    scheme = _OF_MODELOPT.get(algo) if isinstance(algo, str) else None
    if scheme is None:
        rules.refuse("quant_algo", f"must be one of {', '.join(_OF_MODELOPT)}", ELSE)
        return None
    laws = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}
    if isinstance(scheme, Fp4):
        laws |= {"num_bits": 4, "group_size": scheme.group, "strategy": "tensor_group"}
    rules.must_be("group_size", (laws["group_size"],) if "group_size" in laws else (), ELSE)
    if groups := rules.section("config_groups"):
        for name in groups.names():
            if group := groups.section(name):
                _agrees(group, laws)
    lists = [key for key in ("exclude_modules", "ignore") if rules.has(key)]
    excluded = tuple(name for key in lists for name in _wildcards(rules, key))
    for one in {id(section): section, id(rules): rules}.values():
        one.finish()
    return Published(((_CLASSES, scheme),), excluded, head=bool(lists))  # files without a list leave the head as it is


def _agrees(group: HFConfig, laws: Mapping[str, Any]) -> None:
    """Of ModelOpt's groups there is one, which says again what quant_algo says."""
    group.must_be("targets", ([CLASS],), ELSE)
    group.value("input_activations")
    if weights := group.section("weights"):
        for key, law in laws.items():
            weights.must_be(key, (law,), f"quant_algo says otherwise; {CHECK}")
        weights.finish()
    group.finish()


def _form(section: HFConfig, method: str, forms: tuple[str, ...]) -> Any:
    """How GPTQModel says that it packed: under either of two names, or both."""
    section.must_be("method", (method,), CHECK)
    given = [section.value(key) for key in ("checkpoint_format", "format")]
    for key in ("checkpoint_format", "format"):
        section.must_be(key, forms, ELSE)
    if None not in given and given[0] != given[1]:
        section.refuse("format", f"must be checkpoint_format, {shown(given[0])}", CHECK)
    return given[1] if given[0] is None else given[0]


def _dynamic(section: HFConfig) -> tuple[str, ...]:
    """GPTQModel's patterns of modules that are quantized otherwise (+:), or not at all (-:)."""
    given = section.value("dynamic")
    rules = {} if is_off(given) else given
    if not isinstance(rules, dict) or not all(name.startswith("-:") for name in rules):
        section.refuse("dynamic", "must only leave out modules (-:)", f"other bits for some are not supported; {ELSE}")
        return ()
    return _tried(section, "dynamic", [PATTERN + name.removeprefix("-:") for name in rules])


def _in_16_bits(section: HFConfig, key: str) -> tuple[str, ...]:
    """AutoRound's modules that are quantized otherwise than the rest, which must be: not at all."""
    given = section.value(key)
    rules = {} if is_off(given) else given
    if not isinstance(rules, dict) or not all(isinstance(rule, dict) for rule in rules.values()):
        section.refuse(key, "must be an object of objects", CHECK)
        return ()
    other = [name for name, rule in rules.items() if not is_same(rule.get("bits"), 16) or not _IS_NAME(name)]
    if other:
        law = f"must say of each module, by its name, that it has 16 bits, which {shown(other[0])} does not"
        section.refuse(key, law, f"other bits for some are not supported; {ELSE}")
        return ()
    return tuple(rules)


def _four_bits(section: HFConfig) -> None:
    for key in ("bits", "w_bit"):
        section.must_be(key, (4,), f"only 4 bits are supported; {ELSE}")
    if not (section.has("bits") or section.has("w_bit")):
        section.refuse("bits", "must be 4", CHECK)
    section.must_be("data_type", ("int",), f"only integers are supported in 4 bits; {ELSE}")
    section.must_be("desc_act", (False,), f"columns in another order are not supported; {ELSE}")
    section.must_be("lm_head", (False,), f"a head in 4 bits is not supported; {ELSE}")
    section.must_be("pack_dtype", ("int32",), CHECK)
    for key in ("modules_in_block_to_quantize", "super_bits", "super_group_size"):
        if not is_off(section.value(key)):
            section.refuse(key, "must be empty", f"modules that are quantized differently are not supported; {ELSE}")


def _names(section: HFConfig, key: str) -> tuple[str, ...]:
    """A list of names and patterns of modules."""
    given = section.value(key)
    names = [] if given is None else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        section.refuse(key, "must be a list of names", CHECK)
        return ()
    return _tried(section, key, names)


def _wildcards(section: HFConfig, key: str) -> tuple[str, ...]:
    """A list of names of modules, in which a star stands for any characters."""
    names = _names(section, key)
    patterns = [f"{PATTERN}{re.escape(name)}$".replace(r"\*", ".*") if "*" in name else name for name in names]
    return _tried(section, key, patterns)


def _tried(section: HFConfig, key: str, names: list[str]) -> tuple[str, ...]:
    """Names, of which patterns may be tried."""
    for name in names:
        if name.startswith(PATTERN):
            try:
                ways(name.removeprefix(PATTERN))
            except ValueError as fault:
                section.refuse(key, f"has the pattern {shown(name)}, {fault}", CHECK)
                return ()
    return tuple(names)


_READERS: dict[str, Callable[[HFConfig], Published | None]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    MODELOPT: _modelopt,
}
