"""Values of hf_overrides in the place of config.json's, and what is told of wrong ones."""

from typing import Any

import pytest

from jaxinfer.errors import CheckpointError
from jaxinfer.models.config import CHECK
from jaxinfer.models.dense import config_from_hf
from jaxinfer.models.overrides import OverriddenConfig
from tests.models.test_config import LLAMA_3_2_1B, QWEN3_8B, R1_DISTILL_QWEN_1_5B


def test_a_fault_of_the_user_s_own_value_is_not_called_the_file_s() -> None:
    overrides = {"vocab_size": -1, "wings": 2, "rope_scaling": {"type": "su"}}
    with pytest.raises(CheckpointError) as caught:
        config_from_hf(OverriddenConfig({**QWEN3_8B, "num_hidden_layers": 0}, overrides))
    head, *lines, cure = str(caught.value).splitlines()
    assert head == "config.json with hf_overrides of Qwen3ForCausalLM has 4 settings that cannot be served:"
    assert {line.split(" must ")[0].split(" is ")[0].removeprefix("  - ") for line in lines} == {
        "num_hidden_layers",
        *(f"{key} (hf_overrides)" for key in ("vocab_size", "wings", "rope_scaling.type")),
    }
    assert [CHECK in line for line in lines].count(True) == 1 and "to serve it with other values" in cure


SIZES = ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "vocab_size")


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, "32", 2**40, 1.5, True])
def test_a_wrong_size_is_one_fault(name: str, value: Any) -> None:
    for raw in (QWEN3_8B, R1_DISTILL_QWEN_1_5B, LLAMA_3_2_1B):
        with pytest.raises(CheckpointError) as error:
            config_from_hf({**raw, name: value})
        assert f"{name} must be an integer" in str(error.value) and "settings that cannot" not in str(error.value)
