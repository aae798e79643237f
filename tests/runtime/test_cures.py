"""The cures of a plan that is refused: each value that is told works, a moment later too."""

import itertools
import re

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.runtime import memory
from jaxinfer.runtime.cures import Unlawful
from jaxinfer.runtime.memory import GIB
from tests.runtime.test_memory import plan

ABOVE = {
    "num_pages": 10**7,
    "kv_cache_memory_bytes": 10**13,
    "max_model_len": 10**6,
    "max_num_seqs": 4096,
    "max_num_batched_tokens": 2**26,
    "page_size": 4096,
}
LEAST_GIB = {"cpu": 1.34, "gpu": 2.14}  # what the smallest plan takes and 160 MiB
BESIDE: tuple[dict[str, int], ...] = ({}, {"max_num_seqs": 64}, {"max_model_len": 30000}, {"max_num_batched_tokens": 8})


@pytest.mark.parametrize("beside", BESIDE, ids=str)
@pytest.mark.parametrize("name", ABOVE)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_every_value_of_a_cure_fits_when_it_is_typed_a_moment_later(platform, name, beside) -> None:
    """Others may have taken 64 MiB by then."""
    given, num_cures = beside | {name: ABOVE[name]}, 0
    least = LEAST_GIB[platform]
    for size in (least, least + 0.05, least + 0.1, 1.3 * least, 2.5, 3, 5, 9, 23, 140):
        try:
            plan(platform, size * GIB, **given)
        except (ConfigError, DeviceError) as error:
            refusal = str(error)
        else:
            continue
        _, _, cure = refusal.partition("; ")
        for setting, value in re.findall(r"(?:lower|raise|set) (\w+) to (\d+)", cure):
            changed = given | {setting: int(value)}
            assert plan(platform, size * GIB - 64 * 2**20, **changed), refusal
            num_cures += 1
        for names in re.findall(r"leave out ([\w ]+?)(?: or |$)", cure):
            left = {key: given[key] for key in given if key not in names.split(" and ")}
            assert plan(platform, size * GIB - 64 * 2**20, **left), refusal
            num_cures += 1
    assert num_cures or not beside


def test_a_length_beyond_the_model_is_cured_with_one_that_the_memory_holds() -> None:
    with pytest.raises(ConfigError, match="at most what the model can address, 40960, .*; lower max_model_len to 8192"):
        plan("gpu", 3 * GIB, max_model_len=10**6)
    with pytest.raises(
        DeviceError,
        match="got 1000000; and with 40960 memory must hold .* are missing; lower max_model_len to 40960 and free ",
    ):
        plan("gpu", GIB, max_model_len=10**6)


def test_of_settings_that_take_the_memory_the_fewest_are_named() -> None:
    with pytest.raises(DeviceError, match="; leave out max_num_batched_tokens and max_num_seqs$"):
        plan(free=8 * GIB, max_num_batched_tokens=2**26, max_num_seqs=4096, page_size=32, dtype="bfloat16")


def test_the_cures_of_many_settings_take_few_plans(monkeypatch) -> None:
    """Not one for each choice of them."""
    tried, planned = [], memory._plan
    monkeypatch.setattr(memory, "_plan", lambda *args, **named: (tried.append(args), planned(*args, **named))[1])
    many = dict(max_num_seqs=4096, max_num_batched_tokens=2**26, page_size=32, max_model_len=30000, num_pages=10**7)
    many |= dict(kv_cache_memory_bytes=10**13, enable_chunked_prefill=False, gpu_memory_utilization=0.8)
    for size in (1, 8):
        with pytest.raises((ConfigError, DeviceError)):
            plan("gpu", size * GIB, **many)
    assert len(tried) < 400


LOWERED = {"max_num_batched_tokens": (4096, 512, 64, 8, 2), "max_num_seqs": (512, 64, 8, 1)}


@pytest.mark.parametrize("length", [None, 4000, 40960])
@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_what_nobody_asked_for_is_never_held_against_what_somebody_did(platform, is_chunked, length) -> None:
    """No setting that was left out is at odds with one that was given, and a smaller value never needs more memory."""
    least = LEAST_GIB[platform]
    for size, (name, values) in itertools.product((least, 1.1 * least, 1.5 * least, 8, 140), LOWERED.items()):
        did_fit = False
        for value in values:
            given = {name: value, "enable_chunked_prefill": is_chunked} | ({"max_model_len": length} if length else {})
            try:
                found = plan(platform, size * GIB, **given)
            except (ConfigError, DeviceError) as error:
                fact = str(error).partition("; ")[0]
                against = re.search(r"at least (max_num_seqs|the longest prompt)", fact)
                is_asked = against and (length if against[1] != "max_num_seqs" else name == "max_num_seqs")
                assert is_asked or (isinstance(error, DeviceError) and not did_fit), error
                continue
            did_fit = True
            limits = found.limits
            assert getattr(limits, name) == value
            assert limits.max_num_batched_tokens >= (limits.max_num_seqs if is_chunked else limits.max_model_len)
            assert found.weights + found.pages + found.temporaries + found.reserve <= found.free


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_without_chunked_prefill_the_context_is_shortened_to_a_step_that_fits(platform) -> None:
    size = 1.1 * LEAST_GIB[platform] * GIB
    assert plan(platform, size) and plan(platform, size, enable_chunked_prefill=False).limits.max_model_len < 40960
    whole, in_pieces = (plan(platform, 140 * GIB, enable_chunked_prefill=value).limits for value in (False, True))
    assert whole.max_model_len == in_pieces.max_model_len
    with pytest.raises(ConfigError, match="raise max_num_batched_tokens to 4000 or set enable_chunked_prefill to true"):
        plan(platform, 140 * GIB, enable_chunked_prefill=False, max_num_batched_tokens=1, max_model_len=4000)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([], ""),
        (
            ["lower it or not", "drop it"],
            "; lower max_num_seqs to 3 and lower it or not or lower max_num_seqs to 3 and drop it",
        ),
    ],
)
def test_a_fault_without_cures_is_told_as_a_fault_beside_another(changes, told) -> None:
    """It stood in the place of a cure."""

    def refuse(*_: object, **__: object) -> None:
        raise Unlawful("pages are odd", {}, changes)

    error = memory._refusal_beside(Unlawful("a law", {"max_num_seqs": 3}), EngineConfig(max_num_seqs=5), refuse)
    assert str(error) == f"a law; and with 3 pages are odd{told}"
