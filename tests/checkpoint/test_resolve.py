"""A model's name leads to its folder, or to a message that says what to type instead."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.checkpoint import resolve as resolve_module
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.errors import CheckpointError
from tests.support.checkpoints import write_checkpoint

REPOSITORY = Path(__file__).parents[2]


def test_a_folder_gives_its_json_files_unchanged_and_its_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_shards=3)
    checkpoint = resolve(str(tmp_path))
    assert checkpoint.folder == tmp_path
    assert checkpoint.config == json.loads((tmp_path / "config.json").read_text())
    assert checkpoint.generation_config == json.loads((tmp_path / "generation_config.json").read_text())
    assert checkpoint.tokenizer_config == json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert [path.name for path in checkpoint.weight_files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert (checkpoint.commit, checkpoint.is_demo) == (None, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        checkpoint.folder = tmp_path  # type: ignore[misc]


def test_optional_files_may_be_missing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    checkpoint = resolve(str(tmp_path))
    assert (checkpoint.generation_config, checkpoint.tokenizer_config) == ({}, {})


def test_only_what_is_needed_must_be_there(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert resolve(str(tmp_path), needs=("config", "tokenizer")).weight_files == ()
    (tmp_path / "tokenizer.json").unlink()
    assert resolve(str(tmp_path), needs=("config",)).config["vocab_size"] == 384
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    assert resolve(str(tmp_path), needs=("tokenizer",)).config == {}


def test_the_config_is_shown_to_the_callers_check(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    seen: list[dict] = []
    checkpoint = resolve(str(tmp_path), check_config=seen.append)
    assert seen == [checkpoint.config]


def test_overrides_stand_in_the_place_of_the_configs_values_before_it_is_checked(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, wings=2)
    seen: list[dict] = []
    checkpoint = resolve(str(tmp_path), overrides={"wings": None, "vocab_size": 5}, check_config=seen.append)
    stated = json.loads((tmp_path / "config.json").read_text())
    assert seen == [checkpoint.config] == [stated | {"wings": None, "vocab_size": 5}]


def test_a_single_file_wins_over_a_stale_index_and_over_files_of_other_formats(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("left over by an older upload")
    for name in ("consolidated.safetensors", "pytorch_model.bin", "model.gguf", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes(b"not read")
    assert resolve(str(tmp_path)).weight_files == (tmp_path / "model.safetensors",)


def test_one_safetensors_file_may_have_any_name(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.safetensors")
    assert [path.name for path in resolve(str(tmp_path)).weight_files] == ["pytorch_model.safetensors"]


def test_the_tilde_stands_for_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_checkpoint(tmp_path / "models" / "tiny")
    assert resolve("~/models/tiny").folder == tmp_path / "models" / "tiny"


def test_demo_is_the_bundled_checkpoint_even_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = write_checkpoint(tmp_path / "bundled")
    monkeypatch.setattr(resolve_module, "DEMO_FOLDER", bundled)
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "demo")
    checkpoint = resolve("demo")
    assert (checkpoint.folder, checkpoint.is_demo) == (bundled, True)
    assert resolve("./demo").is_demo is False


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("{root}/models/Qwen3-0.6b", "{root}/models/Qwen3-0.6B"),
        ("{root}/models/Qwen-0.6B", "{root}/models/Qwen3-0.6B"),
        ("{root}/modles/Qwen3-0.6B", "{root}/models/Qwen3-0.6B"),
        ("{root}/modles/qwen3_0.6B", "{root}/models/Qwen3-0.6B"),
        ("./models/Qwen3-0.6BB", "models/Qwen3-0.6B"),
    ],
)
def test_a_misspelt_path_gets_the_nearest_folder(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen3-0.6B", "Llama-3.2-1B"):
        write_checkpoint(tmp_path / "models" / name)
    with pytest.raises(CheckpointError) as refusal:
        resolve(typed.format(root=tmp_path))
    assert f"did you mean '{meant.format(root=tmp_path)}'?" in str(refusal.value)
    assert repr(typed.format(root=tmp_path)) in str(refusal.value)


def test_a_path_like_nothing_that_exists_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="existing folder, a hub id or 'demo', got .*; check its spelling"):
        resolve(str(tmp_path / "zzzz"))


def test_a_file_instead_of_its_folder_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"got the file .*config\.json'; name its folder"):
        resolve(str(tmp_path / "config.json"))
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="GGUF is not supported, take the safetensors version"):
        resolve(str(tmp_path / "model.gguf"))


def test_a_url_is_answered_with_the_id_in_it() -> None:
    with pytest.raises(CheckpointError, match="name it 'Qwen/Qwen3-0.6B'"):
        resolve("https://hub.example/Qwen/Qwen3-0.6B/tree/main?x=1")


@pytest.mark.parametrize("model", ["", "a\0b", "x" * 5000, "x" * 300, "../..", "a/b/c", "/", "~nobody/x", "org/../x"])
def test_names_that_cannot_be_a_model_are_refused_without_asking_the_hub(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError) as refusal:
        resolve(model)
    assert len(str(refusal.value)) < 500


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="a revision belongs to a hub id"):
        resolve(str(tmp_path), revision="main")


def test_resolving_a_folder_imports_neither_jax_nor_the_hub_client(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    script = (
        "import sys; from jaxinfer.checkpoint.resolve import resolve; resolve(sys.argv[1]);"
        "print(sorted({'jax', 'flax', 'huggingface_hub', 'transformers', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert result.stdout == "[]\n"
