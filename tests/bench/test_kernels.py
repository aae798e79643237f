"""The kernels' benchmark on a machine without Hopper: what it times is attention over cold pages."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.bench import kernels, kernels_cpu
from jaxinfer.bench.kernels import KernelDevice
from jaxinfer.errors import ConfigError
from jaxinfer_kernels.attention import xla_decode, xla_extend
from jaxinfer_kernels.attention.cases import DECODE, HEADS, DecodeCase, ExtendCase
from jaxinfer_kernels.linear import cpu
from jaxinfer_kernels.linear.cases import LinearShapes
from tests.bench.conftest import LIMITS

SMALL = DecodeCase(HEADS[2], 2, 96)
PLACE = KernelDevice(is_gpu=False, hopper=None, limits=LIMITS)


def test_a_chain_attends_once_for_each_layer_and_set():
    calls = []

    def attend(q, pages, rows):
        calls.append((int(pages[2]), tuple(np.asarray(rows[1]))))
        return q + 1

    arguments = kernels.decode_arrays(SMALL, 2, 3)
    (q,) = kernels.chain(attend, 2, 3, *arguments)
    assert jnp.allclose(q, arguments[0] + 6, atol=0.1)
    assert calls == [(layer, slots) for slots in ((1, 2), (3, 4)) for layer in range(3)]


def test_rows_own_different_pages():
    _, _, _, table, slots, lengths = kernels.decode_arrays(SMALL, 2, 1)
    owned = np.asarray(table)[1:].ravel()
    assert sorted(owned) == list(range(1, len(owned) + 1))
    assert slots.shape == (2, 2)
    assert list(lengths) == [96, 96]


@pytest.mark.parametrize("case", DECODE, ids=str)
def test_the_pages_of_a_chain_are_cold_or_as_many_as_four_turns_give(case):
    sets = kernels.turns(case, kernels.LAYERS)
    assert sets == 4 or kernels.kv_bytes(case) * kernels.LAYERS * sets >= kernels.COLD_BYTES


def test_operations_are_those_that_a_causal_mask_leaves():
    heads = HEADS[2]
    mask = np.tril(np.ones((7, 10)), k=3)  # 7 queries, the last of 10 tokens
    assert kernels.flops(ExtendCase(heads, 3, 7, 10)) == 4 * 3 * heads.heads * heads.head_dim * mask.sum()


@pytest.mark.parametrize("kind", ["decode", "extend"])
def test_xla_s_version_is_timed_by_the_clock_without_a_gpu(kind):
    if kind == "decode":
        arguments, attend = kernels.decode_arrays(SMALL, 1, 1), xla_decode.decode_attention
    else:
        arguments, attend = kernels.extend_arrays(ExtendCase(HEADS[2], 2, 32, 96), 1), xla_extend.extend_attention
    ours, xla = kernels.both(None, attend, 1, 1, PLACE, arguments)
    assert ours is None and xla.device_us is None
    name, mosaic_us, xla_us, _, chain_us, _, _, rate, share = kernels.row_of("x", (ours, xla), 1e6, 1e9, 1e10)
    assert (name, mosaic_us, xla_us) == ("x", None, chain_us)
    assert rate == pytest.approx(1e3 / xla_us)
    assert share == pytest.approx(rate * 10)


def test_linear_layers_on_cpus_are_timed_beside_xla_s_by_every_format_and_number_of_rows(monkeypatch):
    monkeypatch.setattr(kernels_cpu, "ROWS", (1, 2, 3))
    monkeypatch.setitem(kernels_cpu.MODELS, kernels_cpu.MODEL, LinearShapes(1, 64, 64, 64, 64))
    monkeypatch.setattr(
        kernels_cpu, "seconds", lambda linear, x, copies, repeats: 1e-3 if linear is cpu.linear else 4e-3
    )
    rows = [make() for make in kernels_cpu.rows(1e9, 1e5, 1)]
    table = kernels_cpu.table(rows).as_dicts()
    assert [row["weights, rows"] for row in table[::3]] == [
        f"Qwen3-0.6B, {kind}, 1" for kind in ("bfloat16", "int8", "int4")
    ]
    assert [row["C++ GB/s"] / row["XLA GB/s"] for row in table] == pytest.approx([4] * 9)
    num_bytes = 128 * 64 * 2
    assert table[0]["of the limit %"] == pytest.approx(num_bytes / 1e-3 / 1e9 * 100)


@pytest.mark.parametrize("text", ["stages", "stages=x", "depth=3"])
def test_a_wrong_tuning_is_refused(text):
    with pytest.raises(ConfigError, match="--tuning must be name=number"):
        kernels.tuning_of(text)
    assert kernels.tuning_of("stages=3,splits=2").stages == 3
