"""Which family serves an architecture, and how one is added from outside."""

import dataclasses
from pathlib import Path

import pytest

from jaxinfer.errors import CheckpointError
from jaxinfer.models import registry
from jaxinfer.models.registry import dense, family_for, register


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MODELS", dict(registry.MODELS))


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_the_dense_architectures_have_one_family(architecture: str) -> None:
    assert family_for({"architectures": [architecture]}) is dense


def test_an_unknown_architecture_is_refused_with_the_nearest_name_and_the_list() -> None:
    with pytest.raises(CheckpointError) as caught:
        family_for({"architectures": ["Qwen3ForCasualLM"]})
    message = str(caught.value)
    assert "did you mean Qwen3ForCausalLM?" in message
    assert "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, got 'Qwen3ForCasualLM'" in message


@pytest.mark.parametrize("names", [None, [], "Qwen3ForCausalLM", [3], ["Qwen2ForCausalLM", "Qwen3ForCausalLM"]])
def test_a_config_must_name_one_architecture(names: object) -> None:
    with pytest.raises(CheckpointError, match="must name one architecture"):
        family_for({"architectures": names})


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
