"""Flags and words of other programs that mean something of one verb alone are answered with what that verb has."""

import importlib
import re
import shlex

import pytest

from jaxinfer.cli.foreign_verbs import _OF_VERBS

TEXT_ONLY = "not yet: text only, no images, audio or video"
IS_CHAT = "without a PROMPT `jaxinfer run MODEL` is a chat, and `jaxinfer chat MODEL` always is"
NO_JSON = "not yet: no JSON here; "
LINEAR = """'{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'"""
ROPE = f"use --hf-overrides with the key rope_scaling, as in {LINEAR}"
CASES = {
    "run demo hi -sys x": "-sys: use --system",
    "run demo hi --system-prompt x": "--system-prompt: use --system",
    "run demo hi -cnv": f"-cnv: {IS_CHAT}",
    "run demo hi -i": f"-i: {IS_CHAT}",
    "run demo -f p.txt": "-f: pipe it in: `jaxinfer run MODEL < FILE`",
    "run demo hi --image x": f"--image: {TEXT_ONLY}",
    "chat demo --multiline": '--multiline: not needed: lines between """ and """ are one message',
    "rm demo -f": "-f: use --yes",
    "rm demo --force": "--force: use --yes",
    "ps --json": f"--json: {NO_JSON}a server's own is at /api/ps and /metrics",
    "list --json": f"--json: {NO_JSON}a server's models are at /v1/models",
    "show demo --json": f"--json: {NO_JSON}config.json is in the folder that it shows",
    "serve demo -ngl 99": "-ngl: use --device cuda",
    "serve demo -ngl 0": "-ngl: use --device cpu",
    "serve demo --rope-scaling linear": f"--rope-scaling: {ROPE}",
    "serve demo --rope-theta 7": "--rope-theta: use --hf-overrides with the key rope_theta",
    "serve demo --pooling mean": "--pooling: set it in the request: pooling, which is last or mean; without it last",
    "batch r.jsonl -o x --url http://a:1": "--url: batch loads an engine of its own; a server answers files sent to "
    "/v1/files and /v1/batches, and `jaxinfer run --url URL` asks it one prompt",
    "plan demo --gpu 4090": "--gpu: use --for 4090",
    "plan demo --gpu=h100": "--gpu: use --for h100",
    "stop --all": "--all: one server is stopped at a time: `jaxinfer stop SERVER`, as `jaxinfer ps` shows them",
    "bench compare a.json b.json": "bench compare asks two servers, --a URL and --b URL, got a file; of reports "
    "write `jaxinfer bench show b.json --compare a.json`",
    "connect zed": "connect has no settings of zed, which speaks OpenAI's or Ollama's API; enter "
    "http://127.0.0.1:8000/v1 for OpenAI's, http://127.0.0.1:8000 for Ollama's, and a served model (`jaxinfer connect` "
    "shows them of a running server)",
    "signin": "jaxinfer has no command 'signin'; `hf auth login` keeps a token of the hub",
    "collect-env": "jaxinfer has no command 'collect-env'; `jaxinfer doctor` shows what jaxinfer finds on this machine",
    "chat help": "there is no model 'help' here; `jaxinfer help chat` shows the help of chat",
    "serve help": "there is no model 'help' here; `jaxinfer help serve` shows the help of serve",
    "'What is 7?' demo": "the first word must be a verb, got the prompt 'What is 7?'; write "
    "`jaxinfer run demo 'What is 7?'`",
    "demo hello": "the first word must be a verb, got the model 'demo'; write `jaxinfer run demo hello`",
    "demo hello --top-k 1": "the first word must be a verb, got the model 'demo'; write "
    "`jaxinfer run demo hello --top-k 1`",
}


@pytest.mark.parametrize("given", CASES)
def test_a_word_of_another_program_is_told_what_the_verb_has(cli, model, given):
    outcome = cli(*shlex.split(given))
    assert (outcome.code, outcome.out, outcome.last_line) == (2, "", f"error: {CASES[given]}")
    assert model.made == []


@pytest.mark.parametrize("given", ["ps -a", "ps --all", "list -a"])
def test_a_flag_that_asks_for_what_is_so_is_taken_and_named(cli, model, given):
    outcome = cli(*given.split())
    assert outcome.code == 0 and outcome.err == f"{given.split()[1]} changes nothing here\n"


@pytest.mark.parametrize("verb", _OF_VERBS)
def test_a_verb_has_no_flag_that_it_answers_as_another_program_s_and_all_that_it_names(verb):
    command = importlib.import_module(f"jaxinfer.cli.{verb}").command
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    for reason, flags in _OF_VERBS[verb]:
        assert not own & set(flags.split()), reason
        assert set(re.findall(r"^use (--[a-z-]+)", reason)) <= own, reason
