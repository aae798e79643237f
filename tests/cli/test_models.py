"""`pull`, `list`, `show` and `rm` over a hub on localhost and a cache of their own."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from jaxinfer.checkpoint.cached import cached_models
from jaxinfer.models import registry
from jaxinfer.server.presence import Presence
from tests.cli.test_talker import announced
from tests.support.checkpoints import write_checkpoint
from tests.support.fake_hub import FakeHub, running_hub, take_for_the_hub

TINY = "org/tiny-model"


@pytest.fixture
def hub(monkeypatch, tmp_path, short_tmp) -> Iterator[FakeHub]:
    """A hub with one model; no server of this user's is found."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_tmp))
    monkeypatch.delenv("JAXINFER_DOWNLOAD_DIR", raising=False)
    with running_hub() as running:
        running.folders[TINY] = write_checkpoint(tmp_path / "origin", num_shards=2)
        take_for_the_hub(running, monkeypatch, tmp_path / "cache")
        yield running


def columns(cli) -> dict[str, list[str]]:
    """What list prints, by name."""
    outcome = cli("list")
    assert (outcome.code, outcome.err) == (0, "")
    head, *rows = (re.split(r"\s{2,}", line) for line in outcome.out.splitlines())
    assert head == ["NAME", "SIZE", "TYPE", "FITS"]
    return {name: rest for name, *rest in rows}


def test_what_is_pulled_is_listed_shown_and_removed(cli, hub):
    pulled = cli("pull", TINY)
    assert (pulled.code, pulled.out.startswith(f"{TINY} is here: ")) == (0, True), pulled.err
    listed = columns(cli)
    assert listed.keys() == {"demo", TINY}
    size, kind, fits = listed[TINY]
    assert (kind.split(",")[0], fits) == ("Qwen3ForCausalLM", "yes")
    assert cli("show", TINY).out.splitlines()[0] == TINY
    hub.requests.clear()
    assert cli("pull", TINY, "-q").out == ""
    assert hub.downloads == []
    removed = cli("rm", TINY, "--yes")
    assert (removed.code, removed.out) == (
        0,
        f"removed {TINY}, {size} in {Path(constants.HF_HUB_CACHE)}/models--org--tiny-model\n",
    )
    assert columns(cli).keys() == {"demo"}


@pytest.mark.parametrize("config", ["{", "{}", '{"architectures": ["GPT2LMHeadModel"]}'])
def test_what_cannot_be_served_does_not_fit(cli, hub, config):
    assert cli("pull", TINY, "-q").code == 0
    (model,) = cached_models(None)
    assert model.snapshot is not None
    (model.snapshot / "config.json").unlink()  # a link to what the hub sent
    (model.snapshot / "config.json").write_text(config)
    assert columns(cli)[TINY][-1] == f"no: `jaxinfer show {TINY}` says why"
    shown = cli("show", TINY)
    assert "config.json" in shown.err or "cannot be served" in shown.out


def test_a_strangers_family_that_fails_leaves_the_others_listed(cli, hub, monkeypatch):
    assert cli("pull", TINY, "-q").code == 0
    monkeypatch.setattr(registry, "family_for", lambda config: {}["a stranger's fault"])
    assert columns(cli)[TINY][-1] == f"no: `jaxinfer show {TINY}` says why"


def test_a_pull_that_broke_off_goes_on(cli, hub):
    missing = hub.folders[TINY] / "model-00002-of-00002.safetensors"
    hub.claimed_sizes[missing.name] = missing.stat().st_size + 10  # the connection ends before the file does
    broken = cli("pull", TINY)
    assert (broken.code, broken.last_line.startswith(f"error: the download of {TINY} broke off (")) == (3, True)
    assert "it continues where it stopped" in broken.last_line
    hub.claimed_sizes.clear()
    hub.requests.clear()
    assert cli("pull", TINY).code == 0
    assert hub.downloads == [missing.name]


def test_a_model_that_cannot_be_run_is_refused_before_its_weights_come(cli, hub):
    write_checkpoint(hub.folders[TINY], num_shards=2, architectures=["MambaForCausalLM"])
    assert (cli("pull", TINY).code, [name for name in hub.downloads if name.endswith("safetensors")]) == (3, [])


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("gated", "is gated, and your account has no access; accept its terms at"),
        ("unknown", "the hub has no such model, or it is private"),
        ("offline", "; unset HF_HUB_OFFLINE to download, or name the folder of a copy: not in "),
        ("no network", "and the hub cannot be reached (ConnectError"),
        ("disk", "the disk is too small: org/tiny-model needs "),
    ],
)
def test_each_hindrance_of_a_pull_is_one_sentence_and_code_3(cli, hub, monkeypatch, trouble, words):
    if trouble == "gated":
        hub.gated.add(TINY)
    elif trouble == "unknown":
        hub.folders.clear()
    elif trouble == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif trouble == "no network":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    else:
        hub.claimed_sizes["model-00001-of-00002.safetensors"] = 2**60
    outcome = cli("pull", TINY, "-q")
    assert (outcome.code, len(outcome.err.splitlines())) == (3, 1), outcome.err
    assert words in outcome.err


@pytest.mark.parametrize("model", ["demo", "."])
@pytest.mark.parametrize(("verb", "words"), [("pull", "nothing to download"), ("rm", " is a ")])
def test_what_is_no_model_of_the_hub_is_neither_pulled_nor_removed(cli, hub, monkeypatch, tmp_path, verb, words, model):
    monkeypatch.chdir(tmp_path)
    refused = cli(verb, model, *(["--yes"] if verb == "rm" else []))
    assert refused.code == 3
    if model == ".":
        assert words in refused.last_line
    assert tmp_path.is_dir()


def test_rm_asks_and_names_what_goes(cli, hub, monkeypatch):
    cli("pull", TINY, "-q")
    unasked = cli("rm", TINY)
    assert (unasked.code, "there is no terminal; add --yes" in unasked.last_line) == (2, True)
    assert TINY in columns(cli)


def test_a_model_that_is_served_is_not_removed(cli, hub, short_tmp):
    cli("pull", TINY, "-q")
    with announced(Presence(1, "http://127.0.0.1:8000", "alias", 1.0, "ready", source=TINY), short_tmp / "jaxinfer"):
        refused = cli("rm", TINY, "--yes")
    assert (refused.code, f"{TINY} is served at http://127.0.0.1:8000" in refused.last_line) == (2, True)
    assert TINY in columns(cli)


@pytest.mark.parametrize("verb", ["show", "rm"])
def test_a_model_that_is_not_in_the_cache_is_named_with_the_nearest(cli, hub, verb):
    cure = {"show": "`jaxinfer pull org/other` downloads it", "rm": "`jaxinfer list` shows what is there"}[verb]
    assert cli(verb, "org/other").last_line == f"error: org/other is not in the cache; {cure}"
    cli("pull", TINY, "-q")
    outcome = cli(verb, "org/tiny-modle")
    assert (outcome.code, "did you mean 'org/tiny-model'?" in outcome.last_line) == (3, True)


def test_a_pull_of_what_is_there_fetches_nothing_and_says_so(cli, hub):
    assert "fetching the weights of org/tiny-model: " in cli("pull", TINY).err
    assert "fetching" not in cli("pull", TINY).err


@pytest.mark.parametrize("damage", ["blobs", "refs", "snapshots", "config.json"])
def test_a_damaged_cache_is_listed_and_can_be_removed(cli, hub, damage):
    cli("pull", TINY, "-q")
    (model,) = cached_models(None)
    if damage == "config.json":
        (model.snapshot / damage).unlink()
        (model.snapshot / damage).write_text("{")
    else:
        (model.place / damage).rename(model.place / "gone")
        (model.place / damage).mkdir()
    assert TINY in columns(cli)
    assert cli("rm", TINY, "--yes").code == 0
    assert list(cached_models(None)) == []
