"""Words in wrong places: each is answered with the command line that was meant."""

import re
import shlex

import click
import pytest

from jaxinfer.cli import jaxinfer as cli_of_jaxinfer

CASES = {
    "batch q.jsonl demo -o b.jsonl": "MODEL must stand before FILE, got 'demo' behind it; write "
    "`jaxinfer batch demo q.jsonl -o b.jsonl`",
    "batch -o b.jsonl q.jsonl org/x": "MODEL must stand before FILE, got 'org/x' behind it; write "
    "`jaxinfer batch org/x -o b.jsonl q.jsonl`",
    "batch q.jsonl r.csv -o b.jsonl": "there must be one file of rows, got q.jsonl and r.csv; drop one",
    "ppl t.txt demo": "MODEL must stand before FILE, got 'demo' behind it; write `jaxinfer ppl demo t.txt`",
    "ppl demo t.txt no-such": "file not found: no-such; name one that is there",
    "run Hello demo": "MODEL must stand before PROMPT, got 'demo' behind it; write `jaxinfer run demo Hello`",
    "plan org/x 4090": "a card must be named with --for, got '4090' alone; write `jaxinfer plan org/x --for 4090`",
    "plan 4090 org/x": "a card must be named with --for, got '4090' alone; write `jaxinfer plan org/x --for 4090`",
    "plan h200": "a card must be named with --for, got 'h200' alone; write `jaxinfer plan --for h200`",
    "serve 8001": "a port must be named with --port, got '8001' alone; write `jaxinfer serve --port 8001`",
    "serve demo 8001": "a port must be named with --port, got '8001' alone; write `jaxinfer serve demo --port 8001`",
    "serve 0.0.0.0": "an address must be named with --host, got '0.0.0.0' alone; write `jaxinfer serve --host 0.0.0.0`",
    "chat cpu": "a device must be named with --device, got 'cpu' alone; write `jaxinfer chat --device cpu`",
    "chat http://a:1": "a server must be named with --url, got 'http://a:1' alone; write "
    "`jaxinfer chat --url http://a:1`",
    "bench serve http://a:1": "a server must be named with --url, got 'http://a:1' alone; write "
    "`jaxinfer bench serve --url http://a:1`",
    "connect http://a:1/v1": "a server must be named with --url, got 'http://a:1/v1' alone; write "
    "`jaxinfer connect --url http://a:1/v1`",
    "run Hello llama3.2": "MODEL must stand before PROMPT, got 'llama3.2' behind it; write "
    "`jaxinfer run meta-llama/Llama-3.2-3B-Instruct Hello`",
    "serve llama3.2 8001": "a port must be named with --port, got '8001' alone; write "
    "`jaxinfer serve meta-llama/Llama-3.2-3B-Instruct --port 8001`",
    "llama3.2": "the first word must be a verb, got the model 'llama3.2'; write "
    "`jaxinfer run meta-llama/Llama-3.2-3B-Instruct`",
    "demo:latest": "the first word must be a verb, got the model 'demo:latest'; write `jaxinfer run demo`",
    "mistral": "the model must be a folder or a hub id, got 'mistral', a name of Ollama's; name the model as "
    "huggingface.co does, as in 'Qwen/Qwen3-0.6B'",
    "run llama3.2": "run needs a prompt, got none beside the model 'llama3.2'; write it last: "
    'jaxinfer run meta-llama/Llama-3.2-3B-Instruct "What is 7 plus 5?"',
    "serve a b": "jaxinfer serve takes one MODEL, got 'b' too; leave it out, see `jaxinfer serve --help`",
    "serve q.jsonl": "the model must be a folder or a hub id, got the file 'q.jsonl'; name a folder or a hub id",
}


@pytest.fixture(autouse=True)
def files(monkeypatch, tmp_path) -> None:
    for name in ("q.jsonl", "t.txt"):
        (tmp_path / name).write_text("{}\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("given", CASES)
def test_a_word_in_a_wrong_place_is_told_the_command_that_was_meant(cli, model, given):
    outcome = cli(*given.split())
    assert (outcome.code in (2, 3), outcome.out, outcome.last_line) == (True, "", f"error: {CASES[given]}")
    assert model.made == []


@pytest.mark.parametrize(
    ("given", "flag", "next_flag"),
    [
        ("serve --host --port 8155", "--host", "--port"),
        ("serve --served-model-name --port 8155", "--served-model-name", "--port"),
        ("serve demo --port --host=0.0.0.0", "--port", "--host=0.0.0.0"),
        ("serve --host --prot 1", "--host", "--prot"),
        ("run hi --system --top-k 3", "--system", "--top-k"),
        ("batch demo q.jsonl -o --resume", "-o", "--resume"),
        ("bench serve --url --requests 3", "--url", "--requests"),
        ("plan --for -v", "--for", "-v"),
        ("run hi -m -q", "-m", "-q"),
    ],
)
def test_a_flag_is_no_value_of_the_flag_before_it(cli, model, given, flag, next_flag):
    verb = given.split(" -")[0].replace(" demo", "").replace(" hi", "").replace(" q.jsonl", "")
    outcome = cli(*given.split())
    said = f"error: {flag} needs a value, got none before {next_flag}; see `jaxinfer {verb} --help`"
    assert (outcome.code, outcome.last_line, model.made) == (2, said, [])


@pytest.mark.parametrize("value", ["--", "-x", "--- end", "--done"])
def test_a_text_may_begin_with_dashes_and_a_value_may_be_negative(cli, model, value):
    assert cli("run", "hi", "--stop", value).code == 0
    assert model.llm.calls[0].params.stop == [value]
    assert cli("run", "hi", "--stop=--top-k").code == 0
    assert "needs a value" not in cli("run", "hi", "--temperature", "-1").last_line


def test_a_prompt_may_be_any_word_and_a_folder_any_model(cli, model, tmp_path):
    for prompt in ("cpu", "8001", "localhost"):
        assert cli("run", "demo", prompt).code == 0
        assert cli("run", prompt).code == 0
    (tmp_path / "4090").mkdir()
    (tmp_path / "4090" / "config.json").write_text("{}")
    assert "--for" not in cli("plan", "4090").last_line


# by what they mean, on every verb that may take them for a model or for one word too many
STRAYS = (
    "8001",
    "4090",
    "h100",
    "cpu",
    "cuda",
    "0.0.0.0",
    "localhost",
    "http://a:1",
    "port 8001",
    "for 4090",
    "4090 l4",
)
VERBS_WITH_WORDS = ("serve", "chat", "plan", "connect", "warmup", "profile", "pull", "show", "bench latency")


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("verb", VERBS_WITH_WORDS)
def test_every_command_that_is_suggested_is_taken(cli, model, monkeypatch, verb, stray):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for given in (stray, f"demo {stray}", f"{stray} demo", f"{stray} -q"):
        outcome = cli(*verb.split(), *given.split())
        for line in re.findall(r"write `jaxinfer ([^`]+)`", outcome.err):
            assert parses(line), outcome.last_line


def parses(line: str) -> bool:
    """Whether the parser of the command line takes these words."""
    command, context, words = cli_of_jaxinfer, click.Context(cli_of_jaxinfer, info_name="jaxinfer"), shlex.split(line)
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
    try:
        with command.make_context(command.name, words, parent=context):
            return True
    except click.UsageError:
        return False


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("serve demo port 8001", "write `jaxinfer serve demo --port 8001`"),
        ("plan 4090 l4", "a card must be named with --for, and one alone, got 4090 and l4; "
         "write `jaxinfer plan --for 4090`"),
        ("serve h100", "got the card 'h100'; this machine's own GPU is taken, `jaxinfer plan --for h100` plans for"),
        ("serve 4090", "plans for another; for the port write `jaxinfer serve --port 4090`"),
        ("chat 4090", "got the card '4090'; this machine's own GPU is taken, `jaxinfer plan --for 4090` plans for"),
        ("connect 8123", "write `jaxinfer connect --url http://127.0.0.1:8123`"),
        ("chat 8123", "write `jaxinfer chat --url http://127.0.0.1:8123`"),
        ("sanity cpu", "write `jaxinfer sanity --device cpu`"),
        ("sanity demo cpu", "write `jaxinfer sanity demo --device cpu`"),
        ("run h100 hello", "got the card 'h100'"),
        ("serve -p 8001", "-p: use --port"),
        ("serve demo -p", "-p: use --port"),
        ("serve -p hello", "-p: write it behind the model: `jaxinfer run MODEL PROMPT`"),
        ("run demo -p hello", "-p: write it behind the model: `jaxinfer run MODEL PROMPT`"),
    ],
)  # fmt: skip
def test_a_card_a_port_and_a_device_are_no_names_of_the_hub(cli, model, given, said):
    outcome = cli(*given.split())
    assert (outcome.code, said in outcome.last_line, model.made) == (2, True, []), outcome.last_line
