"""What files alone tell of a model is told before an engine's process is started; names of elsewhere have ours."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from huggingface_hub import constants

from jaxinfer.checkpoint.resolve import DEMO_FOLDER, find_repo, local_folder
from jaxinfer.cli.options import check_start
from jaxinfer.cli.run import names_a_model
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError
from jaxinfer.llm import process
from tests.support.fake_hub import running_hub, take_for_the_hub

DAMAGES = {
    "empty": ("config.json is missing", lambda folder: [path.unlink() for path in folder.iterdir()]),
    "no config": ("config.json is missing", lambda folder: (folder / "config.json").unlink()),
    "broken config": ("config.json: must be JSON", lambda folder: (folder / "config.json").write_text('{"a": ')),
    "broken tokenizer": (
        "tokenizer.json must be readable",
        lambda folder: (folder / "tokenizer.json").write_text('{"model": '),
    ),
    "tokenizer of another form": (
        "tokenizer.json must be readable",
        lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": 7}}'),
    ),
    "no tokenizer": ("tokenizer.json is missing", lambda folder: (folder / "tokenizer.json").unlink()),
    "no weights": ("the weights are missing", lambda folder: (folder / "model.safetensors").unlink()),
    "truncated weights": ("truncated", lambda folder: os.truncate(folder / "model.safetensors", 1_000_000)),
}


@pytest.fixture
def damaged(tmp_path, request) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(DEMO_FOLDER, folder)
    DAMAGES[request.param][1](folder)
    return folder


VERBS = ("run", "chat", "serve", "batch", "ppl", "warmup", "profile", "bench latency", "bench throughput")
CASES = [(verb, damage) for verb in VERBS for damage in DAMAGES if verb != "warmup" or "weights" not in damage]


@pytest.mark.parametrize(("verb", "damaged"), CASES, indirect=["damaged"])
def test_a_folder_that_is_no_whole_model_is_told_before_anything_starts(
    cli, model, monkeypatch, tmp_path, damaged, verb, request
):
    said = DAMAGES[request.node.callspec.params["damaged"]][0]
    monkeypatch.setattr(process, "_spawn", lambda *_: pytest.fail("an engine's process was started"))
    (tmp_path / "a.jsonl").write_text('{"text": "x", "prompt": "x"}')
    words = {
        "batch": [str(damaged), str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "b.jsonl")],
        "ppl": ["-m", str(damaged), str(tmp_path / "a.jsonl")],
    }
    outcome = cli(*verb.split(), *words.get(verb, [str(damaged)]), stdin="hi")
    assert (outcome.code, model.made) == (3, [])
    assert said in outcome.err and "start " not in outcome.err


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("names", [["-m", "foo/bar"], ["--tokenizer", "foo/bar"]], ids=" ".join)
@pytest.mark.parametrize("verb", VERBS)
def test_a_name_that_is_not_to_be_had_is_told_before_anything_starts(cli, offline, monkeypatch, tmp_path, names, verb):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(process, "_spawn", lambda *_: pytest.fail("an engine's process was started"))
    (tmp_path / "a.jsonl").write_text('{"text": "x", "prompt": "x"}')
    words = {"batch": [str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "b.jsonl")], "ppl": [str(tmp_path / "a.jsonl")]}
    outcome = cli(*verb.split(), *words.get(verb, []), *names, stdin="hi")
    assert outcome.code == 3
    lines = outcome.err.splitlines()
    assert [line for line in lines if not line.startswith("read ")] == [outcome.last_line], "but of a slow machine"
    whose = "--tokenizer: " if "--tokenizer" in names else ""
    assert outcome.last_line.startswith(f"error: {whose}cannot find foo/bar; unset HF_HUB_OFFLINE to download")


def test_a_name_is_looked_up_only_if_the_cache_has_nothing_of_it_and_nothing_is_downloaded(monkeypatch, tmp_path):
    with running_hub() as hub:
        hub.folders["org/tiny"] = DEMO_FOLDER
        take_for_the_hub(hub, monkeypatch, tmp_path / "cache")
        check_start(EngineConfig(model="org/tiny"))
        assert hub.requests != [] and hub.downloads == []
        (tmp_path / "cache" / "models--org--tiny").mkdir(parents=True)
        hub.requests.clear()
        check_start(EngineConfig(model="org/tiny", tokenizer="org/tiny"))
        assert hub.requests == []
        with pytest.raises(CheckpointError, match="the hub has no such model"):
            check_start(EngineConfig(model="org/tyni"))


def test_ctrl_c_while_a_name_is_looked_up_is_heard_by_the_verb(monkeypatch, tmp_path):
    """A batch has begun its journal by then, and takes it away."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("jaxinfer.checkpoint.resolve.find_repo", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        check_start(EngineConfig(model="org/tiny"))


UNFIT = {
    "an architecture that is none of ours": ("config.json", '{"architectures": ["GPTBigCodeForCausalLM"]}'),
    "a size that is no number": ("config.json", None),
    "half a tokenizer.json": ("tokenizer.json", '{"version": "1.0", "model": {'),
    "no tokenizer.json": ("tokenizer.json", ""),
    "a default that is no number": ("generation_config.json", '{"temperature": "hot"}'),
}


@pytest.mark.parametrize("case", UNFIT)
def test_show_says_of_what_cannot_be_served_why_and_not_that_it_fits(cli, tmp_path, case):
    folder = shutil.copytree(DEMO_FOLDER, tmp_path / "model")
    name, content = UNFIT[case]
    if content is None:
        content = json.dumps(json.loads((folder / name).read_text()) | {"hidden_size": "big"})
    if content:
        (folder / name).write_text(content)
    else:
        (folder / name).unlink()
    outcome = cli("show", str(folder))
    assert "served         cannot be served: " in outcome.out and "fits: yes" not in outcome.out, outcome.out
    assert "cannot be served" not in cli("show", "demo").out


@pytest.mark.parametrize("damaged", sorted(DAMAGES.keys() - {"no tokenizer"}), indirect=True)
def test_show_tells_what_is_wrong_with_a_folder(cli, damaged, request):
    said = DAMAGES[request.node.callspec.params["damaged"]][0]
    outcome = cli("show", str(damaged))
    assert said in outcome.out + outcome.err and "fits: yes" not in outcome.out


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("qwen3:0.6b", "name it 'Qwen/Qwen3-0.6B'"),
        ("qwen3:8b-q4_K_M", "a name of Ollama's; name it 'Qwen/Qwen3-8B'"),
        ("llama3:instruct", "a name of Ollama's; name it 'meta-llama/Meta-Llama-3-8B-Instruct'"),
        ("library/llama3.2:latest", "a name of Ollama's; name it 'meta-llama/Llama-3.2-3B-Instruct'"),
        ("mistral:7b", "a name of Ollama's; name the model as huggingface.co does"),
        ("deepseek-r1:7b", "a name of Ollama's; name it 'deepseek-ai/DeepSeek-R1-Distill-Qwen-7B'"),
        ("hf.co/Qwen/Qwen3-0.6B", "name it 'Qwen/Qwen3-0.6B'"),
        ("huggingface.co/Qwen/Qwen3-0.6B:Q8_0", "name it 'Qwen/Qwen3-0.6B'"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "name it 'Qwen/Qwen3-0.6B'"),
        ("nosuch.gguf", "GGUF is not supported"),
    ],
)
def test_a_name_of_elsewhere_is_told_its_name_here(cli, model, tmp_path, monkeypatch, name, ours):
    monkeypatch.chdir(tmp_path)
    assert names_a_model(name)
    with pytest.raises(CheckpointError) as refusal:
        local_folder(name)
    assert ours in str(refusal.value)
    for verb in ("run", "pull", "rm", "show"):
        outcome = cli(verb, name, stdin="hi")
        assert (outcome.code, model.made) == (3, []) and ours in outcome.last_line, verb


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("qwen3", "name it 'Qwen/Qwen3-8B'"),
        ("qwen2.5-coder", "name it 'Qwen/Qwen2.5-Coder-7B-Instruct'"),
        ("llama3", "name it 'meta-llama/Meta-Llama-3-8B-Instruct'"),
        ("llama3.3", "name it 'meta-llama/Llama-3.3-70B-Instruct'"),
        ("deepseek-r1", "name it 'deepseek-ai/DeepSeek-R1-0528-Qwen3-8B'"),
        ("mistral", "name the model as huggingface.co does"),
    ],
)
def test_a_family_of_ollama_s_is_answered_as_with_its_size(name, ours, monkeypatch, tmp_path):
    """Without the hub, and only by who looks there: a server may serve a model under such a name."""
    monkeypatch.chdir(tmp_path)
    assert names_a_model(name) and local_folder(name) is None
    with pytest.raises(CheckpointError) as refusal:
        find_repo(name, None, tmp_path, ("weights",))
    assert str(refusal.value).startswith(
        f"the model must be a folder or a hub id, got {name!r}, a name of Ollama's; {ours}"
    )


@pytest.mark.parametrize("verb", ["show", "rm"])
@pytest.mark.parametrize(("name", "hub"), [("llama3.3", "meta-llama/Llama-3.3-70B-Instruct"), ("qwq", "Qwen/QwQ-32B")])
def test_a_family_of_ollama_s_is_not_looked_for_in_the_cache(cli, tmp_path, monkeypatch, verb, name, hub):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    outcome = cli(verb, name, "--download-dir", str(tmp_path / "cache"))
    law = f"the model must be a folder or a hub id, got {name!r}, a name of Ollama's; name it {hub!r}"
    assert (outcome.code, outcome.last_line) == (3, f"error: {law}")


@pytest.mark.parametrize("name", ["MODEL", "FOLDER", "./FOLDER", "/models/MODEL"])
@pytest.mark.parametrize("verb", ["run", "serve", "plan", "show", "pull", "rm", "bench latency", "warmup"])
def test_a_blank_of_a_page_is_told_what_it_stands_for(cli, model, monkeypatch, tmp_path, verb, name):
    monkeypatch.chdir(tmp_path)
    outcome = cli(*verb.split(), name, *(["hi"] if verb == "run" else []))
    assert (outcome.code, model.made) == (3, [])
    law = f"the model must be a folder, a hub id or 'demo', got {name!r}, which stands for one"
    assert outcome.last_line == f"error: {law}; name one, as in 'Qwen/Qwen3-0.6B'"
    (tmp_path / "MODEL").mkdir()
    assert local_folder("MODEL") == Path("MODEL"), "a folder of that name is a model like others"


@pytest.mark.parametrize("word", ["note:this", "12:30", "a:b", "Translate:hello"])
def test_a_word_with_a_colon_is_a_prompt(word, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert not names_a_model(word)


def test_what_pull_takes_is_a_hub_id(cli):
    said = "error: the model must be a hub id, as in 'Qwen/Qwen3-0.6B', got 'a/b/c'; "
    assert cli("pull", "a/b/c").last_line.startswith(said)


def test_what_can_be_no_hub_id_is_not_to_be_pulled(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for verb in ("rm", "show"):
        outcome = cli(verb, "../../no/such/etc")
        assert outcome.code == 3 and "pull" not in outcome.last_line


@pytest.mark.parametrize("verb", ["run demo hello", "chat demo", "batch demo {rows} -o {out}"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--max-tokens 200 --max-model-len 200", "--max-tokens must be below --max-model-len, 200, got 200; lower it"),
        ("--max-tokens 2048", "--max-tokens must be below what the model can address, 2048, got 2048; lower it"),
    ],
)
def test_an_answer_longer_than_the_context_is_refused_before_anything_starts(
    cli, model, monkeypatch, tmp_path, verb, given, said
):
    monkeypatch.setattr(process, "_spawn", lambda *_: pytest.fail("an engine's process was started"))
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n')
    line = verb.format(rows=tmp_path / "a.jsonl", out=tmp_path / "b.jsonl")
    outcome = cli(*line.split(), *given.split())
    assert (outcome.code, said in outcome.last_line, model.made) == (2, True, []), outcome.last_line
