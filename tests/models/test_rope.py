"""Angles of positions, against those of Hugging Face transformers and against their definitions."""

import functools
import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers import rope
from jaxinfer.layers.spec import Rope
from jaxinfer.models.config import HFConfig
from jaxinfer.models.rope import rope_from_hf
from tests.support.golden_models import GOLDEN, R1_ATTN_FACTOR, ROPE_CASES


@functools.cache
def recorded() -> dict[str, Any]:
    return json.loads((GOLDEN / "rope.json").read_text())


def read(section: dict[str, Any]) -> Rope:
    config = HFConfig(section)
    result = rope_from_hf(config, section["max_position_embeddings"])
    assert config.faults == []
    return result


@pytest.mark.parametrize("name", ROPE_CASES)
def test_frequencies_and_factor_are_those_of_transformers(name: str) -> None:
    section = ROPE_CASES[name]
    answer, ours = recorded()[name], read(section)
    # Theirs are computed in f32, ours in f64 and rounded once: a few units in the last place apart.
    np.testing.assert_allclose(
        rope.frequencies(ours, section.get("head_dim", 128)), np.float32(answer["frequencies"]), rtol=1e-6
    )
    assert ours.attention_factor == pytest.approx(answer["attention_factor"], rel=1e-12)


def test_attn_factor_multiplies_what_yarn_computes() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    section = {"rope_theta": 1000000, "max_position_embeddings": 131072, "rope_scaling": scaling}
    assert read(section).attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    scaling["attn_factor"] = R1_ATTN_FACTOR
    assert read(section).attention_factor == pytest.approx(1.0, abs=1e-12)


def test_a_factor_left_out_of_yarn_is_the_ratio_of_the_contexts() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 4096}
    assert read({"max_position_embeddings": 16384, "rope_scaling": scaling}).factor == 4.0


def test_an_original_context_beside_the_rope_section_is_read() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    section = {"max_position_embeddings": 16384, "original_max_position_embeddings": 4096, "rope_scaling": scaling}
    assert read(section).original_max_position == 4096


def test_rotated_products_depend_on_the_distance_alone() -> None:
    config = Rope(theta=10000.0)
    q, k = (jnp.asarray(np.random.default_rng(i).standard_normal((1, 1, 16)), jnp.float32) for i in (0, 1))

    def score(at_q: int, at_k: int) -> float:
        turned_q = rope.rotate(q, rope.rotation(config, 16, jnp.array([at_q])))
        turned_k = rope.rotate(k, rope.rotation(config, 16, jnp.array([at_k])))
        return float((turned_q * turned_k).sum())

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-2)


def test_angles_of_far_positions_are_not_rounded_to_bfloat16() -> None:
    cos, _ = rope.rotation(Rope(), 8, jnp.array([257]))
    assert cos.dtype == jnp.float32
    assert float(cos[0, 0, 0]) == pytest.approx(math.cos(257), abs=1e-5)


SECTIONS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 64},
]
THETA = 500_000.0
OTHER = {"rope_type": "yarn", "factor": 3.0, "rope_theta": 7.0, "original_max_position_embeddings": 32}


def joined(section: dict[str, Any], left_out: tuple[str, ...], oldest: bool, top: bool) -> dict[str, Any]:
    """Of a section, both styles of it: keys that stand elsewhere too are left out of the older."""
    old = {key: value for key, value in section.items() if key not in left_out}
    old = {"type" if key == "rope_type" and oldest else key: value for key, value in old.items()}
    return {"rope_scaling": old, "rope_parameters": section} | ({"rope_theta": THETA} if top else {})


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("left_out", [("rope_theta",), ("rope_theta", "original_max_position_embeddings"), ()])
@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize("top", [False, True])
def test_two_sections_that_do_not_contradict_each_other_are_one(section, left_out, oldest, top) -> None:
    whole = section | {"rope_theta": THETA, "partial_rotary_factor": None}
    raw = joined(whole, left_out, oldest, top) | {"max_position_embeddings": 256}
    expected = read({"rope_parameters": whole, "max_position_embeddings": 256})
    assert read(raw) == expected
    assert read(raw | {"rope_scaling": raw["rope_parameters"], "rope_parameters": raw["rope_scaling"]}) == expected


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("key", ["rope_type", "factor", "rope_theta", "original_max_position_embeddings"])
def test_a_real_contradiction_is_refused(section, key) -> None:
    whole = section | {"rope_theta": THETA}
    if OTHER[key] == whole.get(key) or (key == "original_max_position_embeddings" and key not in whole):
        return
    config = HFConfig(joined(whole | {key: OTHER[key]}, (), False, False) | {"rope_parameters": whole})
    rope_from_hf(config, 256)
    assert [fault for fault in config.faults if fault.startswith("rope_scaling must agree with rope_parameters, got ")]
    config = HFConfig({"rope_scaling": section, "rope_parameters": whole, "rope_theta": 7.0})
    rope_from_hf(config, 256)
    (fault,) = config.faults
    assert fault.startswith("rope_theta must agree with the one in the rope section")
