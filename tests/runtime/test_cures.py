"""The cures of a plan that is refused: each value that is told works, a moment later too."""

import re

import pytest

from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.runtime import memory
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
        own = refusal.split(" ", 1)[0]
        _, _, cure = refusal.partition("; ")
        for setting, value in re.findall(r"(?:lower|raise) (\w+) to (\d+)", cure):
            changed = given | {own if setting == "it" else setting: int(value)}
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
    with pytest.raises(DeviceError, match="got 1000000; and with 40960 memory must hold .* are missing; free "):
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
