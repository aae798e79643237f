"""Hopper GPUs differ in their multiprocessors (H20 78, H100 PCIe 114, H100 SXM and H200 132; parts of one 16 and more):
each kernel is cut for the one that it is given."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.attention import sm90_decode_config, sm90_extend
from jaxinfer_kernels.attention.sm90_decode_config import DecodeTuning
from jaxinfer_kernels.attention.sm90_extend import ExtendTuning
from jaxinfer_kernels.linear import sm90_medium, sm90_medium_config, sm90_small, sm90_small_config
from jaxinfer_kernels.linear.cases import MODELS
from jaxinfer_kernels.linear.quantized import Format
from jaxinfer_kernels.linear.sm90_large import GateUpConfig, GateUpTuning
from jaxinfer_kernels.linear.sm90_medium_config import REGISTERS, MediumTuning
from jaxinfer_kernels.linear.sm90_small_config import SmallTuning, WeightForm
from jaxinfer_kernels.sm90 import H200, HopperGpu
from tests.kernels.linear.products import arguments, error, reference, shapes

H20, PCIE = (dataclasses.replace(H200, multiprocessors=n) for n in (78, 114))
GPUS = st.integers(8, 160).map(lambda n: dataclasses.replace(H200, multiprocessors=n))
WIDTHS = st.integers(1, 400).map(lambda n: 64 * n)


def test_a_device_is_asked_for_its_sizes():
    asked = SimpleNamespace(compute_capability="9.0", core_count=78, shared_memory_per_block_optin=232_448)
    assert HopperGpu.of(asked) == H20
    assert HopperGpu.of(SimpleNamespace(compute_capability="10.0", core_count=148)) is None
    assert HopperGpu.of(jax.devices("cpu")[0]) is None


def test_what_was_measured_on_an_h200_stays_there_and_shrinks_elsewhere():
    measured = {
        2: (112_000, (264, 132, 79, 62, 47, 39, 32, 30)),
        1: (229_000, (132, 66, 39, 30, 22, 17, 15, 15)),
    }
    assert {ctas: H200.resident[ctas] for ctas in measured} == measured
    assert H20.resident[1] == (229_000, (78, 39, 23, 17, 13, 10, 8, 8))
    assert [gpu.scaled(1) for gpu in (H200, H20)] == [1, 1]


@given(GPUS, WIDTHS, st.sampled_from(["silu", "residual", None]), st.integers(1, 32))
def test_tiles_of_a_medium_product_fit_registers_and_clusters_the_gpu(gpu, out, after, eights):
    w = jax.ShapeDtypeStruct(((2 if after == "silu" else 1) * out, 1024), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((8 * eights, 1024), jnp.bfloat16)
    plan = sm90_medium_config.plan_launch(x, w, after, MediumTuning(gpu=gpu), None)
    registers = plan.sides * plan.columns // 2
    assert registers < REGISTERS[plan.warpgroups] and plan.columns <= 256
    assert plan.splits == 1 or plan.tiles <= gpu.resident[1][1][plan.splits * plan.halves - 1]


@pytest.mark.parametrize(("gpu", "columns"), [(H200, 96), (PCIE, 112), (H20, 160), (HopperGpu(40, 232_448), 160)])
def test_tiles_of_8b_s_gate_and_up_are_one_or_two_a_multiprocessor(gpu, columns):
    x, w = (jax.ShapeDtypeStruct((n, 4096), jnp.bfloat16) for n in (128, 2 * 12288))
    plan = sm90_medium_config.plan_launch(x, w, "silu", MediumTuning(gpu=gpu), None)
    assert plan.columns == columns


HELD = [WeightForm(), WeightForm(Format.FP8, (128, 128)), WeightForm(Format.PACKED4, (1, 128), has_zeros=True)]


@given(GPUS, WIDTHS, st.integers(1, 64).map(lambda n: 128 * n), st.integers(1, 2), st.sampled_from(HELD))
def test_ctas_of_a_small_product_are_there_at_once(gpu, out, depth, rows, weights):
    cut = sm90_small_config._cut(8 * rows, depth, out, SmallTuning(gpu=gpu), weights)
    if cut is None:
        return
    rooms = (clusters for at_once, (_, clusters) in gpu.resident.items() if at_once <= weights.most_resident(8 * rows))
    at_once = max(clusters[cut.splits - 1] for clusters in rooms)
    assert cut.clusters <= min(at_once, out // 64)


@given(GPUS, st.sampled_from([128, 256, 1024, 8192]), st.integers(1, 64))
def test_ctas_of_a_large_product_are_one_a_multiprocessor(gpu, rows, tiles):
    plan = GateUpConfig(rows, 1024, 128 * tiles, jnp.bfloat16, GateUpTuning(gpu=gpu), None)
    assert plan.clusters * plan.cluster <= gpu.multiprocessors
    assert plan.clusters == plan.tiles or (plan.clusters + 1) * plan.cluster > gpu.multiprocessors


@pytest.mark.parametrize(("gpu", "splits", "stages"), [(H200, 4, 2), (PCIE, 4, 2), (H20, 2, 3)])
def test_rows_of_a_decode_step_are_split_by_the_multiprocessors(gpu, splits, stages):
    pages = jax.ShapeDtypeStruct((2, 50, 2, 64, 128), jnp.bfloat16)
    plan = sm90_decode_config.plan_launch(19, 8, pages, pages.dtype, DecodeTuning(gpu=gpu), None)
    assert (plan.splits, plan.stages) == (splits, stages)


@pytest.mark.parametrize(("gpu", "warpgroups", "splits"), [(H200, 1, 4), (PCIE, 2, 3), (H20, 2, 2)])
def test_queries_of_a_prompt_are_cut_by_the_multiprocessors(gpu, warpgroups, splits):
    tuning = ExtendTuning(gpu=gpu)
    assert sm90_extend._cut(tuning, 512, 30).warpgroups == warpgroups
    assert sm90_extend._cut(tuning, 64, 30).splits == splits


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [H20, PCIE], ids=["H20", "H100 PCIe"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("module", "tuning", "rows"), [(sm90_small, SmallTuning, 8), (sm90_medium, MediumTuning, 128)])
def test_linears_of_all_models_lower_for_other_gpus(model, gpu, module, tuning, rows):
    width, mlp = MODELS[model].width, MODELS[model].mlp
    named = shapes("linear_residual", rows, width, mlp)
    lowered = module.linear_residual.trace(**named, tuning=tuning(gpu=gpu)).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("mosaic_gpu_v2") == 1


@pytest.mark.slow
@pytest.mark.parametrize("op", ["linear_residual", "gate_up"])
@pytest.mark.parametrize("gpu", [H200, H20, dataclasses.replace(H200, multiprocessors=2)], ids=str)
def test_a_medium_product_is_its_definition_however_it_is_cut(op, gpu):
    """Interpreted: two multiprocessors take several tiles each."""
    named = arguments(op, 8, 512, 128)
    tuning = MediumTuning(splits=1, gpu=gpu)
    out = getattr(sm90_medium, op)(**named, tuning=tuning, interpret=plgpu.InterpretGPUParams())
    assert error(out, reference(op, named)) < 1e-2
