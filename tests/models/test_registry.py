"""Which family serves an architecture, and how one is added from outside."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from jaxinfer.errors import CheckpointError
from jaxinfer.models import registry
from jaxinfer.models.dense import TRAITS, config_from_hf
from jaxinfer.models.registry import dense, family_for, register

LLAMA = {
    "model_type": "llama",
    **{"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "torch_dtype": "float32"},
}


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MODELS", dict(registry.MODELS))


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_the_dense_architectures_have_one_family(architecture: str) -> None:
    assert family_for({"architectures": [architecture]}) is dense


@pytest.mark.parametrize(
    "name", ["Qwen3ForCasualLM", "Gemma3ForCausalLM", "DeepseekV2ForCausalLM", "MistralForCausalLM"]
)
def test_an_architecture_is_never_a_misspelling_of_another(name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        family_for({"architectures": [name]})
    message = str(caught.value)
    assert "did you mean" not in message
    assert f"LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, got {name!r}, which " in message


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(TRAITS)), st.data())
def test_a_name_close_to_one_of_ours_is_another_and_told_what_is_served(name: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(name)))
    end = data.draw(st.integers(start, min(len(name), start + 2)))
    other = name[:start] + data.draw(st.text("aeinrstLMQ2345", max_size=3)) + name[end:]
    assume(other not in TRAITS and other.removesuffix("Model") + "ForCausalLM" not in TRAITS)
    with pytest.raises(CheckpointError) as caught:
        family_for({"architectures": [other]})
    message = str(caught.value)
    assert "did you mean" not in message and f"got {other!r}, which " in message
    assert "has " in message or "is of another family" in message


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("Qwen3MoeForCausalLM", {}, "has experts,"),
        ("DeepseekV2ForCausalLM", {"n_routed_experts": 64, "kv_lora_rank": 512}, "has experts and latent attention,"),
        ("GptOssForCausalLM", {"num_local_experts": 32, "sliding_window": 128}, "has experts and sliding windows,"),
        ("Gemma3ForCausalLM", {"sliding_window": 512}, "has sliding windows,"),
        ("MistralForCausalLM", {"sliding_window": 4096}, "has sliding windows,"),
        ("MistralForCausalLM", {"sliding_window": None}, "which is of another family; choose"),
        ("MllamaForConditionalGeneration", {}, "has images,"),
        ("Mistral3ForConditionalGeneration", {}, "has images,"),
        ("Gemma3ForConditionalGeneration", {}, "has images,"),
        ("Llama4ForConditionalGeneration", {}, "has images,"),
        ("Qwen2_5_VLForConditionalGeneration", {"vision_config": {"depth": 32}}, "has images,"),
        ("AnyForConditionalGeneration", {"text_config": {"num_experts": 256}}, "has experts,"),
        ("Qwen3NextForCausalLM", {"linear_num_key_heads": 16, "num_experts": 512}, "has experts and recurrent layers,"),
        ("GptOssForCausalLM", {}, "has experts,"),
        ("Eagle3LlamaForCausalLM", {}, "has a head that drafts for another model,"),
        ("LlamaForCausalLMEagle3", {"draft_vocab_size": 32000}, "has a head that drafts for another model,"),
        ("SmolLM3ForCausalLM", {"num_hidden_layers": 2, "no_rope_layers": [1, 1]}, "is of another family;"),
        ("SmolLM3ForCausalLM", {"num_hidden_layers": 2, "no_rope_layers": [0, 0]}, "has layers without rotary"),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "has an encoder,"),
        ("Qwen2ForSequenceClassification", {}, "has a head that classifies or rewards,"),
    ],
)
def test_what_an_unknown_architecture_has_that_ours_do_not_is_said(
    name: str, keys: dict[str, object], said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        family_for({"architectures": [name], **keys})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("qwen3_moe", "has experts,"), ("mistral", "is of another family;"), ("qwen2_vl", "has images,")]
    + [("gpt_oss", "has experts,"), ("qwen3_next", "has recurrent layers,")],
)
def test_what_a_type_alone_has_that_ours_do_not_is_said(kind: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=f"got none and model_type '{kind}', which {said}"):
        family_for({"model_type": kind})


@pytest.mark.parametrize("names", [{}, "", 0, False])
def test_what_is_no_list_of_names_is_said_beside_a_type(names: object) -> None:
    with pytest.raises(CheckpointError, match="must name its architecture, got architectures="):
        family_for({"architectures": names, "model_type": "qwen3"})


def test_a_long_name_is_shown_cut() -> None:
    with pytest.raises(CheckpointError) as caught:
        family_for({"architectures": ["x" * 100_000]})
    assert "got 'xxx" in str(caught.value) and "xxx..., which is of another family" in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_the_old_spelling_of_llama_is_llama() -> None:
    old, new = (LLAMA | {"architectures": [name]} for name in ("LLaMAForCausalLM", "LlamaForCausalLM"))
    assert family_for(old) is dense and config_from_hf(old) == config_from_hf(new)


def test_a_body_and_a_type_alone_are_of_the_family_of_the_whole_model() -> None:
    assert family_for({"architectures": ["Qwen3Model"]}) is dense
    assert family_for({"model_type": "qwen2"}) is dense
    assert family_for({"architectures": [], "model_type": "llama"}) is dense


@pytest.mark.parametrize(
    "names", [None, [], {}, "", "Qwen3ForCausalLM", [3], [["Qwen3ForCausalLM"]], [{}], ["Qwen3ForCausalLM", 3]]
)
def test_a_config_must_name_its_architecture(names: object) -> None:
    with pytest.raises(CheckpointError, match="must name its architecture"):
        family_for({"architectures": names})


def test_of_several_architectures_the_first_counts() -> None:
    assert family_for({"architectures": ["Qwen3ForCausalLM", "Qwen3ForReward"]}) is dense
    assert family_for({"architectures": ["Qwen3Model", "Qwen3ForReward"]}) is dense
    with pytest.raises(CheckpointError, match="got 'Qwen3ForReward'"):
        family_for({"architectures": ["Qwen3ForReward", "Qwen3ForCausalLM"]})


def test_an_architecture_can_be_registered_and_then_belongs_to_its_family() -> None:
    mine = dataclasses.replace(dense, parameters=lambda config: None)
    register("MineForCausalLM", mine)
    register("MineForCausalLM", mine)
    assert family_for({"architectures": ["MineForCausalLM"]}) is mine
    with pytest.raises(ValueError, match="'MineForCausalLM' has one already"):
        register("MineForCausalLM", dense)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with three entry points: a family, something else, and one that does not import."""
    info = tmp_path / "zoo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[jaxinfer.models]\nZebraForCausalLM = zoo_models:zebra\nYakForCausalLM = zoo_models:yak\n"
        "XerusForCausalLM = zoo_models:missing\n"
    )
    (tmp_path / "zoo_models.py").write_text("from jaxinfer.models.registry import dense\nzebra = dense\nyak = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plugin")
def test_an_installed_package_adds_an_architecture() -> None:
    assert family_for({"architectures": ["ZebraForCausalLM"]}) is dense
    with pytest.raises(CheckpointError, match="ZebraForCausalLM"):  # it is listed among the supported ones
        family_for({"architectures": ["NoSuchModel"]})


@pytest.mark.usefixtures("plugin")
def test_a_broken_package_is_named_with_its_fault() -> None:
    with pytest.raises(CheckpointError, match=r"'YakForCausalLM' .* must be a Family, got int from zoo_models:yak"):
        family_for({"architectures": ["YakForCausalLM"]})
    with pytest.raises(CheckpointError, match=r"'XerusForCausalLM' .* must load, got AttributeError"):
        family_for({"architectures": ["XerusForCausalLM"]})
