"""Hub ids: what is downloaded, what the cache serves, and every way in which the hub can say no."""

import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from jaxinfer.checkpoint.contents import check_names
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.errors import CheckpointError
from jaxinfer.models.registry import family_for
from tests.support.attempts import Stopwatch
from tests.support.checkpoints import write_checkpoint
from tests.support.fake_hub import FakeHub, commit_of, running_hub, take_for_the_hub

SETTINGS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
TINY = "org/tiny-model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with one sound model, which huggingface_hub takes for the real one, and an empty cache."""
    with running_hub() as running:
        running.folders[TINY] = write_checkpoint(tmp_path / "origin", num_shards=2)
        for name in ("README.md", "training_args.bin", "vocab.json", "merges.txt", "modeling_tiny.py"):
            (tmp_path / "origin" / name).write_text("not needed")
        take_for_the_hub(running, monkeypatch, tmp_path / "cache")
        yield running


def refusal_of(model: str, **arguments: object) -> str:
    """The message, which must come within five seconds."""
    watch = Stopwatch()
    with pytest.raises(CheckpointError) as refusal:
        resolve(model, **arguments)  # type: ignore[arg-type]
    assert watch.seconds() < 5
    return str(refusal.value)


def test_only_the_files_that_are_needed_are_downloaded_settings_first(hub: FakeHub) -> None:
    told: list[str] = []
    checkpoint = resolve(TINY, on_progress=told.append)
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert sorted(hub.downloads[:-2]) == sorted([*SETTINGS, "model.safetensors.index.json"])
    assert sorted(hub.downloads[-2:]) == shards
    assert [path.name for path in checkpoint.weight_files] == shards
    assert checkpoint.commit == commit_of(TINY)
    assert checkpoint.config["model_type"] == "qwen3"
    assert any(": 2 files, " in line for line in told)


def test_a_second_time_nothing_is_downloaded(hub: FakeHub) -> None:
    first = resolve(TINY)
    hub.requests.clear()
    assert resolve(TINY) == first
    assert hub.downloads == []


def test_no_weights_are_downloaded_when_none_are_needed(hub: FakeHub) -> None:
    checkpoint = resolve(TINY, needs=("config", "tokenizer"))
    assert checkpoint.weight_files == ()
    assert not [name for name in hub.downloads if name.endswith(".safetensors")]


def test_files_go_to_the_download_dir_when_one_is_given(hub: FakeHub, tmp_path: Path) -> None:
    checkpoint = resolve(TINY, download_dir=tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere") in checkpoint.folder.parents
    assert not (tmp_path / "cache").exists()


def test_a_revision_can_be_named(hub: FakeHub) -> None:
    assert resolve(TINY, revision=commit_of(TINY)).commit == commit_of(TINY)
    message = refusal_of(TINY, revision="v9")
    assert "must be a branch, tag or commit of org/tiny-model, got 'v9'" in message


def test_the_cache_serves_when_offline_or_when_the_hub_is_down(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve(TINY)
    hub.status = 503
    assert resolve(TINY) == first
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert resolve(TINY) == first
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert resolve(TINY) == first
    assert hub.requests == []


def test_offline_with_an_empty_cache_names_the_switch(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = refusal_of(TINY)
    assert message.startswith(
        "cannot find org/tiny-model; unset HF_HUB_OFFLINE to download, or name the folder of a copy: "
    )
    assert message.endswith(", and HF_HUB_OFFLINE is set")
    assert hub.requests == []


def test_a_half_downloaded_model_offline_names_the_missing_file(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    (resolve(TINY).folder / "model-00002-of-00002.safetensors").unlink()
    for name, value, reason in (
        ("ENDPOINT", "http://127.0.0.1:9", "the hub cannot be reached (ConnectError"),
        ("HF_HUB_OFFLINE", True, "HF_HUB_OFFLINE is set; unset HF_HUB_OFFLINE to download"),
    ):
        monkeypatch.setattr(constants, name, value)
        message = refusal_of(TINY)
        assert "missing are model-00002-of-00002.safetensors; not downloaded, since " in message
        assert reason in message and "download the model again" not in message, "which is what has just failed"


@pytest.mark.parametrize(
    "names", [[], ["config.json"], ["config.json", "tokenizer.json"], ["config.json", "a.safetensors", "b.safetensors"]]
)
def test_what_is_missing_has_the_cure_of_whoever_knows_it(names: list[str]) -> None:
    needs = ["config", "tokenizer", "weights"]
    with pytest.raises(CheckpointError) as refused:
        check_names(names, "x", needs, "not downloaded, since Y")
    faults = str(refused.value).removeprefix("x: must be a Hugging Face model:").strip().splitlines()
    assert all(fault.endswith("; not downloaded, since Y") and fault.count(";") == 1 for fault in faults)


def test_what_no_network_would_mend_keeps_its_own_cure(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve(TINY).folder
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("{")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "correct or download it again" in refusal_of(TINY) and "HF_HUB_OFFLINE" not in refusal_of(TINY)


def test_no_network_is_said_with_its_cure(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    message = refusal_of(TINY)
    cures, _, cause = message.partition(": not in ")
    assert (
        cures.startswith(f"cannot find {TINY}; check the network (")
        and "the hub cannot be reached (ConnectError" in cause
    )


def test_a_hub_that_never_answers_is_given_up_within_five_seconds(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:  # accepts connections, says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "the hub cannot be reached" in refusal_of(TINY)


@pytest.mark.parametrize(("status", "cure"), [(500, "try again later"), (429, "try again later"), (403, "HF_TOKEN")])
def test_an_answer_that_is_an_error_is_named(status: int, cure: str, hub: FakeHub) -> None:
    hub.status = status
    message = refusal_of(TINY)
    assert f"the hub answered {status}" in message
    assert cure in message


def test_an_unknown_id_gets_the_nearest_model_in_the_cache(hub: FakeHub) -> None:
    assert "the hub has no such model, or it is private; check its spelling" in refusal_of("org/other")
    resolve(TINY)
    assert "did you mean 'org/tiny-model'?" in refusal_of("org/tiny-modle")
    assert "did you mean 'org/tiny-model'?" in refusal_of("Tiny-Model")


def test_a_name_that_is_spelt_right_is_not_proposed_for_itself(hub: FakeHub) -> None:
    hub.status = 500
    assert "did you mean" not in refusal_of("Qwen/Qwen3-8B")


@pytest.mark.parametrize("name", ["demmo", "Demo", "deom"])
def test_a_misspelt_demo_is_told_its_name_with_a_hub_and_without(name: str, hub: FakeHub, monkeypatch) -> None:
    assert "did you mean 'demo'?" in refusal_of(name)
    hub.status = 500
    assert refusal_of(name).startswith(f"cannot find {name}, did you mean 'demo'? If not, try again later, or ")


def test_an_unknown_id_gets_the_nearest_folder(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "models" / "tiny")
    assert "did you mean 'models/tiny'?" in refusal_of("models/tinny")


def test_a_gated_model_says_where_to_ask_for_access(hub: FakeHub) -> None:
    hub.gated.add(TINY)
    message = refusal_of(TINY)
    assert f"org/tiny-model is gated, and your account has no access; accept its terms at {hub.url}" in message
    assert "HF_TOKEN" in message


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["config.json", "tokenizer.json", "model-Q4_K_M.gguf"], "only GGUF"),
        (["config.json", "tokenizer.json", "pytorch_model.bin"], "only pytorch_model.bin"),
        (["adapter_config.json", "adapter_model.safetensors"], "it is an adapter"),
        (["tokenizer.json", "model.safetensors"], "config.json is missing"),
        (["config.json", "tokenizer.model", "model.safetensors"], "there is only tokenizer.model"),
    ],
)
def test_a_repository_without_what_we_need_is_refused_before_anything_is_downloaded(
    files: list[str], words: str, hub: FakeHub, tmp_path: Path
) -> None:
    (tmp_path / "poor").mkdir()
    for name in files:
        (tmp_path / "poor" / name).write_text("{}")
    hub.folders["org/poor"] = tmp_path / "poor"
    message = refusal_of("org/poor")
    assert message.startswith("org/poor: ")
    assert words in message
    assert hub.downloads == []


def test_broken_settings_are_refused_before_the_weights_are_downloaded(hub: FakeHub) -> None:
    (hub.folders[TINY] / "config.json").write_text("{")
    assert "config.json: must be JSON" in refusal_of(TINY)
    assert not [name for name in hub.downloads if name.endswith(".safetensors")]


def test_a_model_that_cannot_be_served_is_refused_before_its_weights_are_downloaded(hub: FakeHub) -> None:
    write_checkpoint(hub.folders[TINY], num_shards=2, architectures=["MambaForCausalLM"])
    assert "got 'MambaForCausalLM'" in refusal_of(TINY, check_config=family_for)
    assert not [name for name in hub.downloads if name.endswith(".safetensors")]


def test_a_shard_that_the_repository_lacks_is_named_before_the_others_are_downloaded(hub: FakeHub) -> None:
    (hub.folders[TINY] / "model-00001-of-00002.safetensors").unlink()
    assert "missing are model-00001-of-00002.safetensors" in refusal_of(TINY)
    assert not [name for name in hub.downloads if name.endswith(".safetensors")]


def test_a_disk_that_is_too_small_is_said_before_the_weights_are_downloaded(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.claimed_sizes["model-00001-of-00002.safetensors"] = 15_000_000_000
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12 - 9 * 10**9, 9 * 10**9))
    message = refusal_of(TINY)
    assert "the disk is too small: org/tiny-model needs 13.97 GiB, " in message
    assert "cache has 8.38 GiB; free some space, or set download_dir (--download-dir) or HF_HOME" in message
    assert not [name for name in hub.downloads if name.endswith(".safetensors")]


def test_a_download_that_breaks_off_says_that_it_can_be_continued(hub: FakeHub) -> None:
    hub.claimed_sizes["model-00002-of-00002.safetensors"] = 1_000_000  # more than ever arrives
    message = refusal_of(TINY)
    assert "the download of org/tiny-model broke off" in message
    assert "run the same command again, it continues where it stopped" in message
