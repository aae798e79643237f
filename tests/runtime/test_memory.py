"""The memory plan: what fits, what is chosen, and errors that name a value which works."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxinfer.cache.spec import CacheSpec, PagedKV, Recurrent
from jaxinfer.config import EngineConfig, ExtendBucket
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.known import KNOWN
from jaxinfer.models.registry import dense
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends, Launches, as_held
from jaxinfer.runtime.buckets import MAX_EXECUTABLES, Decode, decode_sizes, draw_sizes
from jaxinfer.runtime.defaults import GPU
from jaxinfer.runtime.memory import (
    GIB,
    MemoryPlan,
    grid_floor,
    needs_for,
    plan_for,
)
from jaxinfer.runtime.moving import staged_bytes
from jaxinfer.runtime.programs import samplers
from jaxinfer.runtime.temporaries import gathered_bytes, temporary_bytes
from tests.support.published import compressed
from tests.support.tiny_runner import HELPERS, TINY

OURS_OF_CPU = Backends(decode_linear=Backend.CPU, extend_linear=Backend.CPU)
QWEN3_06B = dataclasses.replace(
    TINY,
    vocab_size=151936,
    hidden_size=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    max_position=40960,
    dtype="bfloat16",
)


def plan(
    platform: str = "cpu",
    free: float = 23 * GIB,
    model: DenseConfig = QWEN3_06B,
    backends: Backends = XLA_ONLY,
    **settings: object,
) -> MemoryPlan:
    return plan_for(EngineConfig(**settings), model, dense, platform=platform, free=int(free), backends=backends)


class Hybrid(DenseConfig):
    """One layer in four keeps everything, two keep a window, one a recurrent state."""

    def caches(self, dtype: str) -> tuple[CacheSpec, ...]:
        whole = super().caches(dtype)[0]
        assert isinstance(whole, PagedKV)
        window, state = dataclasses.replace(whole, window=512), Recurrent((("delta", (16, 128, 128), "float32"),), 10)
        return (whole, window, window, state) * (self.num_layers // 4)


def test_layers_of_several_kinds_share_what_is_free_with_the_states_of_all_slots_and_snapshots() -> None:
    model = Hybrid(**{field.name: getattr(QWEN3_06B, field.name) for field in dataclasses.fields(QWEN3_06B)})
    found = plan("gpu", free=20 * GIB, model=model, max_model_len=4096)
    layout, limits = found.layout, found.limits
    assert layout.windows == (None, 512, 512) and limits.page_tables == 3
    states = layout.row_bytes * (limits.max_num_seqs + 1 + 10)
    assert layout.row_bytes == 7 * 16 * 128 * 128 * 4
    room = found.free - found.weights - found.temporaries - states
    assert 0.9 * room <= found.pages <= room and limits.cache_tokens >= 4096
    with pytest.raises(ConfigError, match="which hold 2,048; raise num_pages to 193"):
        plan("gpu", free=20 * GIB, model=model, max_model_len=4096, num_pages=97)


def test_a_cpu_gives_pages_a_quarter_of_what_is_free_but_4_gib_at_most() -> None:
    large, small = plan(free=64 * GIB), plan(free=6 * GIB)
    assert 3.75 * GIB <= large.pages <= 4 * GIB
    assert small.pages <= (6 * GIB - small.weights) / 4
    assert small.pages >= 0.9 * (6 * GIB - small.weights) / 4


def test_a_small_model_on_a_cpu_takes_no_more_than_its_sequences_can_use() -> None:
    tiny = plan(model=TINY)
    assert tiny.limits.max_model_len == TINY.max_position
    assert tiny.limits.num_pages == 16 * TINY.max_position // 16  # on the grid, page 0 included


def test_a_gpu_gives_pages_what_weights_and_temporaries_leave() -> None:
    gpu = plan("gpu", free=125 * GIB)
    total = gpu.weights + gpu.pages + gpu.temporaries
    assert 0.93 * 125 * GIB < total < 125 * GIB
    assert gpu.limits.max_model_len == 40960
    assert (gpu.limits.max_num_seqs, gpu.limits.max_num_batched_tokens, gpu.limits.page_size) == (256, 8192, 64)
    assert gpu.temporaries > plan("gpu", free=125 * GIB, max_num_seqs=64).temporaries + 192 * (2 + 0.25) * 151936


@pytest.mark.parametrize(
    ("platform", "decode", "batches", "contexts"),
    [
        ("gpu", Backend.XLA, (1, 4, 16, 64, 256), (512, 2048)),
        ("gpu", Backend.MOSAIC, (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256), ()),
        ("cpu", Backend.XLA, (1, 2, 4, 8, 16), ()),
    ],
    ids=str,
)
def test_decode_steps_come_by_context_where_xla_attends_on_a_gpu(
    platform: str, decode: Backend, batches: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    made = plan(platform, free=125 * GIB, backends=Backends(decode_attention=decode))
    limits = made.limits
    assert (limits.decode_buckets, limits.decode_contexts) == (batches, contexts)
    sizes = decode_sizes(batches, contexts)
    draws = [draw_sizes(limits.max_num_seqs, sampler) for sampler in samplers(Backend.XLA, "gpu")]
    draws += 2 * draws[-1:]  # masks and logprobs
    assert sum(map(len, (sizes, limits.extend_buckets, *draws))) + len(HELPERS) <= MAX_EXECUTABLES
    rows = dict(made.rows())
    assert rows["decode attention"] == decode
    assert ("1x512 1x2048 1 4x512" in rows["compiled steps"]) == bool(contexts)


def test_no_context_is_longer_than_a_sequence_may_be() -> None:
    assert plan("gpu", free=125 * GIB, max_model_len=1000).limits.decode_contexts == (512, 1000)


def test_temporaries_have_room_for_what_is_gathered_at_once() -> None:
    """Small steps, so that the gathered keys and values are what weighs."""
    sizes = {"max_num_seqs": 64, "max_num_batched_tokens": 64}
    by_context = plan("gpu", free=125 * GIB, model=TINY, **sizes)
    looping = plan("gpu", free=125 * GIB, model=TINY, **sizes, backends=Backends(decode_attention=Backend.MOSAIC))
    gathered = gathered_bytes(TINY, 4, [Decode(64, 2048), Decode(64)])
    assert gathered == 64 * 2048 * (2 * 2 * 16 * 4 + 2 * 4 * 4)
    assert by_context.temporaries - looping.temporaries == gathered - temporary_bytes(TINY, ExtendBucket(64, 64, 64))


@settings(max_examples=25)
@given(left=st.integers(3 * GIB, 130 * GIB), more=st.integers(0, 20 * GIB), seqs=st.sampled_from([None, 8, 300]))
@example(left=5 * GIB, more=0, seqs=None)
def test_the_step_of_a_gpu_is_as_large_as_a_quarter_of_what_weights_leave_allows(
    left: int, more: int, seqs: int | None
) -> None:
    weights = plan("gpu", free=125 * GIB).weights
    small, large = (plan("gpu", free=weights + GIB // 2 + size, max_num_seqs=seqs) for size in (left, left + more))
    steps = [(made.limits.max_num_batched_tokens, made.limits.max_num_seqs) for made in (small, large)]
    assert steps == sorted(steps), "more memory, no smaller step"
    hidden = small.limits.max_num_batched_tokens * 2 * QWEN3_06B.hidden_size
    least = GPU[-1].max_num_batched_tokens
    assert small.temporaries - hidden <= left / 4 or small.limits.max_num_batched_tokens <= max(least, seqs or 0)
    assert small.limits.max_num_seqs == (seqs or min(256, small.limits.max_num_batched_tokens // 16))


def test_defaults_on_a_cpu() -> None:
    limits = plan().limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.page_size) == (16, 256, 16)
    assert limits.max_model_len == (limits.num_pages - 1) * 16  # less than the model allows: what memory fits


def test_settings_are_taken_as_they_are() -> None:
    given = {"max_model_len": 3000, "max_num_seqs": 5, "max_num_batched_tokens": 77, "page_size": 32, "num_pages": 333}
    limits = plan(**given, run_ahead=0, enable_prefix_caching=False, max_num_queued_seqs=9).limits
    assert {name: getattr(limits, name) for name in given} == given
    assert (limits.run_ahead, limits.enable_prefix_caching, limits.max_num_queued_seqs) == (0, False, 9)
    assert limits.max_pages_per_seq == 94


def test_the_host_s_pages_take_what_they_are_given_and_no_more_than_a_machine_has() -> None:
    page = plan().layout.page_bytes
    assert plan(free=64 * GIB).limits.num_host_pages == 2 * GIB // page
    assert plan(free=4 * GIB).limits.num_host_pages == GIB // 2 // page, "an eighth of what is free"
    assert plan(kv_offloading_bytes=8 * GIB).limits.num_host_pages == 8 * GIB // page
    assert plan(kv_offloading_bytes=0).limits.num_host_pages == 0
    assert plan(enable_prefix_caching=False).limits.num_host_pages == 0
    assert ("host pages", f"up to 2.00 GiB: {2 * GIB // page:,} pages of sessions") in plan(free=64 * GIB).rows()


def test_a_gpu_has_room_for_pages_on_their_way_to_the_host() -> None:
    on, off = (plan("gpu", free=125 * GIB, kv_offloading_bytes=size) for size in (2 * GIB, 0))
    assert plan("gpu", free=125 * GIB).limits.num_host_pages == 0, "unasked it has none: it has not run there"
    assert on.limits.num_host_pages == 2 * GIB // on.layout.page_bytes
    assert on.temporaries - off.temporaries == staged_bytes(on.layout.page_bytes) > 0


def test_a_little_more_or_less_free_memory_gives_the_same_executables() -> None:
    counts = {plan(free=12 * GIB + extra * 2**20).limits.num_pages for extra in range(0, 100, 10)}
    assert len(counts) <= 2


def test_the_grid_gives_away_a_sixteenth_at_most() -> None:
    for pages in [1, 2, 17, 31, 32, 33, 1000, 123_457, 2**20 - 1]:
        floored = grid_floor(pages)
        assert pages * 15 / 16 <= floored <= pages
        assert grid_floor(floored) == floored


def test_half_the_bytes_per_value_give_twice_the_pages() -> None:
    half, full = plan(free=6 * GIB), plan(free=6 * GIB, dtype="float32")
    assert full.layout.page_bytes == 2 * half.layout.page_bytes == 16 * 2 * 28 * 2 * 8 * 128 * 2
    assert full.limits.num_pages < 0.55 * half.limits.num_pages


def test_the_rows_say_where_the_memory_goes() -> None:
    rows = dict(plan().rows())
    assert rows["weights"] == "1.11 GiB"
    assert re.fullmatch(r"3.94 GiB: [\d,]+ pages of 16, [\d,]+ tokens", rows["pages"])
    assert rows["compiled steps"].startswith("decode 1 2 4 8 16; extend 16x16")


@pytest.mark.parametrize(
    ("quantization", "dtype", "backends", "words"),
    [
        ("int8", "bfloat16", OURS_OF_CPU, "0.56 GiB: 113 matrices in int8"),
        (
            "int4",
            "bfloat16",
            OURS_OF_CPU,
            "0.38 GiB: 1 matrix in int8, 112 matrices in int4",
        ),
        (
            "int8",
            "float32",
            XLA_ONLY,
            "0.56 GiB: 113 matrices in int8, which XLA widens to float32 for each product, slowly, as our kernels are "
            "for bfloat16",
        ),
        (
            "int8",
            "bfloat16",
            XLA_ONLY,
            "0.56 GiB: 113 matrices in int8, which XLA widens to bfloat16 for each product, slowly, as there are no "
            "kernels of ours (jaxinfer doctor)",
        ),
    ],
)
def test_quantized_weights_take_their_bytes_and_say_who_multiplies_them(quantization, dtype, backends, words) -> None:
    model = dataclasses.replace(QWEN3_06B, tie_embeddings=True, quantization=quantization)
    found = plan(model=model, backends=backends, dtype=dtype)
    assert dict(found.rows())["weights"] == words
    plain = plan(model=dataclasses.replace(model, quantization=None), backends=backends, dtype=dtype)
    widened = 4 * model.vocab_size * model.hidden_size
    assert found.temporaries - plain.temporaries == (widened if backends is XLA_ONLY else 0)


@pytest.mark.parametrize(
    ("quantization", "dtype", "backends", "words"),
    [
        (
            None,
            "float32",
            XLA_ONLY,
            "0.99 GiB: 112 matrices in fp8 with a scale per 128 x 128 weights, which XLA widens to float32 for each "
            "product, slowly, as our kernels are for bfloat16",
        ),
        (
            None,
            "bfloat16",
            Backends(decode_linear=Backend.MOSAIC),
            "0.70 GiB: 112 matrices in fp8 with a scale per 128 x 128 weights, which steps of more than 64 rows widen "
            "to bfloat16 for each product, slowly",
        ),
        (
            None,
            "bfloat16",
            Backends(decode_linear=Backend.MOSAIC, extend_linear=Backend.MOSAIC, launches=Launches.SEQUENCE),
            "0.70 GiB: 112 matrices in fp8 with a scale per 128 x 128 weights; steps of more than 64 rows round "
            "activations to fp8 too, with a scale per row",
        ),
        (
            "int8",
            "bfloat16",
            OURS_OF_CPU,
            "0.70 GiB: 112 matrices in int8, rounded again from fp8 with a scale per 128 x 128 weights, which our "
            "kernels for CPUs do not read",
        ),
    ],
)
def test_published_weights_take_their_bytes_and_say_what_becomes_of_them(quantization, dtype, backends, words) -> None:
    model = dense.model(KNOWN["Qwen/Qwen3-0.6B-FP8"])
    found = plan(model=dataclasses.replace(model, quantization=quantization), backends=backends, dtype=dtype)
    assert dict(found.rows())["weights"] == words
    plain = plan(model=dataclasses.replace(model, published=None), backends=backends, dtype=dtype)
    widened = 4 * 2 * model.intermediate_size * model.hidden_size  # gate and up
    by_ours = backends is OURS_OF_CPU or backends.launches is Launches.SEQUENCE
    assert found.temporaries - plain.temporaries == (0 if by_ours else widened)


def test_published_int8_stays_as_it_is_where_our_kernels_run() -> None:
    section = compressed("int-quantized", num_bits=8, type="int", strategy="channel")
    model = dense.model(KNOWN["Qwen/Qwen3-0.6B-FP8"] | {"quantization_config": section})
    model = dataclasses.replace(model, saved_in="float16")
    ours = OURS_OF_CPU
    assert as_held(model, ours).quantization == "int8", "or XLA would compute longer prompts"
    assert dict(plan(model=as_held(model, ours), backends=ours).rows())["weights"] == (
        "0.70 GiB: 112 matrices in int8 with a scale per channel, computed in bfloat16 and not float16, which our "
        "kernels for CPUs do not read (dtype sets it)"
    )


def test_a_dtype_that_is_not_the_checkpoint_s_is_said() -> None:
    model = dataclasses.replace(dense.model(KNOWN["Qwen/Qwen3-0.6B-FP8"]), quantization="int8", saved_in="float16")
    ours = OURS_OF_CPU
    assert dict(plan(model=model, backends=ours).rows())["weights"] == (
        "0.70 GiB: 112 matrices in int8, rounded again from fp8 with a scale per 128 x 128 weights, which our kernels "
        "for CPUs do not read, computed in bfloat16 and not float16, which they do not read either (dtype sets it)"
    )


# (settings, what the message says, settings that it says would work)
REFUSED = [
    (
        {"max_model_len": 50000, "kv_cache_memory_bytes": 8 * GIB},
        "at most what the model can address, 40960, got 50000",
        {"max_model_len": 40960},
    ),
    ({"max_num_seqs": 16, "max_num_batched_tokens": 8}, r"max_num_seqs \(16\), got 8", {"max_num_batched_tokens": 16}),
    ({"num_pages": 10, "max_model_len": 1000}, "one sequence of 1,000 tokens.*got 10", {"num_pages": 64}),
    ({"num_pages": 10, "max_model_len": 1000}, "or lower max_model_len to 144", {"max_model_len": 144}),
    ({"num_pages": 10**6}, "must fit in memory, but 1,000,000 of 16 tokens take", None),
    (
        {"kv_cache_memory_bytes": 10**13},
        "kv_cache_memory_bytes must fit in memory, .* are left beside the weights",
        {"kv_cache_memory_bytes": 10**9},
    ),
    ({"kv_cache_memory_bytes": 10**9, "max_model_len": 40000}, "kv_cache_memory_bytes must hold one sequence", None),
    (
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 100, "max_model_len": 3000},
        r"the longest prompt \(3000\) without chunked prefill, got 100",
        {"max_num_batched_tokens": 3000},
    ),
]


@pytest.mark.parametrize(("settings", "message", "cure"), REFUSED, ids=str)
def test_a_setting_that_cannot_work_is_refused_with_one_that_does(
    settings: dict[str, int], message: str, cure: dict[str, int] | None
) -> None:
    with pytest.raises((ConfigError, DeviceError), match=message) as error:
        plan(**settings)
    is_of_the_device = bool(re.search("must fit in memory|^the pages must hold", str(error.value)))
    assert isinstance(error.value, DeviceError) == is_of_the_device, "of settings alone it is a ConfigError"
    if cure is None:  # the value is in the message alone
        name, value = re.findall(r"(?:raise|lower) (\w+) to (\d+)", str(error.value))[0]
        cure = {name: int(value)}
    plan(**settings | cure)


def test_a_machine_too_small_for_the_model_is_a_device_error() -> None:
    for platform in ("cpu", "gpu"):
        with pytest.raises(DeviceError, match=r"free [\d.]+ GiB of memory, choose a smaller model"):
            plan(platform, free=GIB)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_pages_beside_weights_that_leave_no_room_are_refused_too(platform: str) -> None:
    weights = plan(platform, free=125 * GIB).weights
    with pytest.raises(DeviceError, match=r"num_pages must fit in memory, .*; free \d+\.\d+ GiB"):
        plan(platform, free=weights + 1000, num_pages=10**6)


def test_temporaries_grow_with_tokens_and_with_rows_of_logits() -> None:
    base = temporary_bytes(QWEN3_06B, ExtendBucket(256, 16, 16))
    assert temporary_bytes(QWEN3_06B, ExtendBucket(512, 16, 16)) > base
    assert temporary_bytes(QWEN3_06B, ExtendBucket(256, 16, 32)) > 1.5 * base


@given(
    platform=st.sampled_from(["cpu", "gpu"]),
    free=st.integers(0, 20 * GIB),
    utilization=st.sampled_from([0.5, 0.9, 1.0]),
    layers=st.sampled_from([1, 12]),
)
@example(platform="cpu", free=0, utilization=0.9, layers=12)
@settings(max_examples=16)
def test_who_adds_the_memory_that_is_missing_has_enough(platform, free, utilization, layers) -> None:
    """Of a GPU the engine has a share: what is missing is counted on the device."""
    share = utilization if platform == "gpu" else 1.0
    model, chosen = dataclasses.replace(QWEN3_06B, num_layers=layers), {"gpu_memory_utilization": utilization}
    try:
        plan(platform, int(free * share), model, **chosen)
    except DeviceError as error:
        found = re.search(r"free ([\d.]+) (GiB|MiB) of memory", str(error))
        assert found, error
        added = float(found[1]) * {"GiB": GIB, "MiB": 2**20}[found[2]]
        plan(platform, int((free + added) * share) + 1, model, **chosen)
        with pytest.raises(DeviceError):
            plan(platform, int((free + added - GIB / 50) * share), model, **chosen)


GIVEN = {
    "max_num_batched_tokens": [2**10, 2**15, 2**26],
    "max_num_seqs": [1, 200, 4096],
    "gpu_memory_utilization": [0.05, 0.5],
    "page_size": [16, 4096],
    "max_model_len": [16, 4000],
    "enable_chunked_prefill": [False],
    "dtype": ["float32"],
    "kv_offloading_bytes": [GIB, 20 * GIB],
    "num_pages": [2, 10**6],
    "kv_cache_memory_bytes": [GIB // 2, 10**12],
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_setting_without_which_a_model_fits_is_the_first_cure_with_a_value_that_works(platform, name) -> None:
    """A plan that is not refused has no more in its rows than is free."""

    def planned(size: float, **chosen: object) -> MemoryPlan:
        share = chosen.get("gpu_memory_utilization", 0.9) if platform == "gpu" else 1
        return plan(platform, size * GIB * share, **chosen)

    for value, size in itertools.product(GIVEN[name], (0.5, 1.15, 1.25, 1.5, 2, 2.4, 3, 8, 23)):
        try:
            found = planned(size, **{name: value})
            own = 0 if platform == "gpu" else found.host_pages
            assert found.weights + found.pages + found.states + found.temporaries + own <= found.free
        except DeviceError as error:
            refusal, cure = str(error), str(error).partition("; ")[2].partition(", or ")[0]
        except ConfigError:
            continue
        else:
            continue
        try:
            planned(size)
        except DeviceError:
            if not re.match(f"(lower|raise|set|leave out) {name}", cure):
                continue
        verb, *said = cure.partition(" or ")[0].split(" ")
        assert (verb in ("lower", "raise", "set", "leave"), name in said) == (True, True), refusal
        kind = type(value)
        works = {} if verb == "leave" else {name: said[-1] == "true" if kind is bool else kind(said[-1])}
        planned(size, **works)


def test_settings_that_take_the_memory_together_are_named_together() -> None:
    with pytest.raises(DeviceError, match="; leave out max_num_batched_tokens and max_num_seqs$"):
        plan(free=8 * GIB, max_num_batched_tokens=2**26, max_num_seqs=4096)
    with pytest.raises(DeviceError, match="; lower max_num_batched_tokens to 65536$"):
        plan(free=8 * GIB, max_num_batched_tokens=2**26, max_num_seqs=8)


@given(platform=st.sampled_from(["cpu", "gpu"]), free=st.integers(0, GIB), length=st.sampled_from([None, 2000]))
@settings(max_examples=16)
def test_the_rows_of_a_refusal_add_up_to_what_is_free_and_what_is_missing(platform, free, length) -> None:
    config = EngineConfig(max_model_len=length)
    needs = needs_for(config, QWEN3_06B, dense, platform=platform, free=free)
    parts = [word.split(" ", 2) for _, word in needs.rows()]
    total = sum(float(number) * {"GiB": GIB, "MiB": 2**20}[unit.strip(":,")] for number, unit, *_ in parts)
    with pytest.raises(DeviceError) as error:
        plan(platform, free=free, max_model_len=length)
    missing = float(re.findall(r"([\d.]+) GiB are missing", str(error.value))[0]) * GIB
    assert total == pytest.approx(free + missing, abs=GIB / 30)


def test_a_cpu_whose_steps_leave_no_room_takes_smaller_ones() -> None:
    weights = plan().weights
    steps = [plan(free=weights + left * 2**20).limits for left in (60, 80, 100, 200, 1000)]
    sizes = [(one.max_num_batched_tokens, one.max_num_seqs) for one in steps]
    assert sizes == [(16, 1), (32, 2), (64, 4), (128, 8), (256, 16)]


def test_a_cpu_has_the_pages_of_a_length_that_is_asked_for_where_they_fit() -> None:
    """Beyond the share of the memory that it takes unasked."""
    free = plan().weights + 400 * 2**20
    unasked = plan(free=free).limits.cache_tokens
    for tokens in (unasked // 2, unasked + 16, 2 * unasked):
        assert plan(free=free, max_model_len=tokens).limits.max_model_len == tokens
    with pytest.raises(DeviceError, match="the pages must hold one sequence of .*; lower max_model_len to ") as error:
        plan(free=free, max_model_len=6 * unasked)
    plan(free=free, max_model_len=int(re.findall(r"max_model_len to (\d+)", str(error.value))[0]))


def test_pages_are_not_to_be_lowered_where_the_weights_alone_do_not_fit() -> None:
    with pytest.raises(
        DeviceError, match=r"must hold one page .* 0 bytes are left beside the weights.*; raise kv.* and free \d"
    ):
        plan(free=GIB // 2, kv_cache_memory_bytes=2**20)


@pytest.mark.parametrize("free", [3 * GIB, 5 * GIB, 23 * GIB])
def test_the_rows_of_a_plan_on_a_gpu_add_up_to_what_is_free_but_for_the_grid_of_pages(free) -> None:
    found = plan("gpu", free=free)
    rows = dict(found.rows())
    sizes = [rows[name].split(" ") for name in ("weights", "pages", "temporaries", "reserve")]
    total = sum(float(number) * {"GiB": GIB, "MiB": 2**20}[unit.strip(":,")] for number, unit, *_ in sizes)
    assert free - found.pages / 16 - 2 * found.layout.page_bytes - GIB / 50 < total <= free + GIB / 50
    assert "reserve" not in dict(plan("cpu").rows())
