"""The kernels' benchmark on a machine without Hopper: what it times is attention over cold pages."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.bench import kernels
from jaxinfer.errors import ConfigError
from jaxinfer_kernels import decode_attention
from jaxinfer_kernels.cases import DECODE, HEADS, Decode

SMALL = Decode(HEADS[2], 2, 96)


def test_a_chain_attends_once_for_each_layer_and_set():
    calls = []

    def attend(q, k, v, layer, page_table, slots, lengths):
        calls.append((int(layer), tuple(np.asarray(slots))))
        return q + 1

    arguments = kernels.arrays(SMALL, 2, 3)
    (q,) = kernels.chain(attend, 2, 3, *arguments)
    assert jnp.allclose(q, arguments[0] + 6, atol=0.1)
    assert calls == [(layer, slots) for slots in ((1, 2), (3, 4)) for layer in range(3)]


def test_rows_own_different_pages():
    _, _, _, table, slots, lengths = kernels.arrays(SMALL, 2, 1)
    owned = np.asarray(table)[1:].ravel()
    assert sorted(owned) == list(range(1, len(owned) + 1))
    assert slots.shape == (2, 2)
    assert list(lengths) == [96, 96]


@pytest.mark.parametrize("case", DECODE, ids=str)
def test_the_pages_of_a_chain_are_cold_or_as_many_as_four_turns_give(case):
    sets = kernels.turns(case, kernels.LAYERS)
    assert sets == 4 or kernels.kv_bytes(case) * kernels.LAYERS * sets >= kernels.COLD_BYTES


def test_xla_s_version_is_timed_by_the_clock_without_a_gpu():
    timing = kernels.measure(SMALL, decode_attention.decode_attention, 1, False, "")
    assert timing.device_us is None
    assert timing.best_us == timing.chain_us > 0


@pytest.mark.parametrize("text", ["stages", "stages=x", "depth=3"])
def test_a_wrong_tuning_is_refused(text):
    with pytest.raises(ConfigError, match="--tuning must be name=number"):
        kernels.tuning_of(text)
    assert kernels.tuning_of("stages=3,splits=2").stages == 3
