"""Flags of vLLM, SGLang and llama-server: each is ours, or refused by its own name with a reason or our name for it."""

import importlib
import json
from pathlib import Path

import pytest

from jaxinfer.cli import VERBS
from jaxinfer.cli.foreign import FOREIGN, reply

LISTS: dict[str, str] = json.loads((Path(__file__).parent / "flags_of_others.json").read_text())
OURS = {
    name
    for param in importlib.import_module("jaxinfer.cli.serve").command.params
    for name in (*param.opts, *param.secondary_opts)
} | {"-h", "--help"}


@pytest.mark.parametrize("program", LISTS)
def test_every_flag_is_ours_or_has_a_reply(program):
    flags = LISTS[program].split()
    assert len(flags) > 300
    assert [flag for flag in flags if flag not in OURS and reply(flag) is None] == []


@pytest.mark.parametrize(("reason", "patterns"), FOREIGN)
def test_a_reply_names_only_flags_and_verbs_that_there_are(reason, patterns):
    words = reason.replace("`", " ").replace(",", " ").replace("(", " ").replace(")", " ").replace(";", " ").split()
    assert {word for word in words if word.startswith("--")} <= OURS | {"--version"}
    if "jaxinfer" in words and (verb := words[words.index("jaxinfer") + 1]).islower() and words[0] == "use":
        assert verb in VERBS or verb == "--version"


@pytest.mark.parametrize(
    ("arguments", "last_line"),
    [
        (["--tensor-parallel-size", "2"], "error: --tensor-parallel-size: not yet: jaxinfer runs on one GPU; drop it"),
        (["-tp", "2"], "error: -tp: not yet: jaxinfer runs on one GPU; drop it"),
        (["--tensor_parallel_size=2"], "error: --tensor_parallel_size: not yet: jaxinfer runs on one GPU; drop it"),
        (["--trust-remote-code"], "error: --trust-remote-code: never: code from a checkpoint is not run"),
        (["-ngl", "99"], "error: -ngl: use --device"),
        (["--n-gpu-layers", "99"], "error: --n-gpu-layers: use --device"),
        (["--swap-space", "4"], "error: --swap-space: use --kv-offloading-bytes"),
        (["--enforce-eager"], "error: --enforce-eager: use --no-cuda-graphs"),
        (["--enable-lora"], "error: --enable-lora: not yet: no LoRA adapters"),
        (["--kv-cache-dtype", "fp8"], "error: --kv-cache-dtype: not yet: KV pages have the weights' dtype"),
        (["--no-warmup"], "error: --no-warmup: not needed: the step's programs are compiled before the first request"),
        (["--xyzzy"], "error: unknown option of jaxinfer serve '--xyzzy', see `jaxinfer serve --help-all`"),
    ],
)
def test_a_pasted_flag_is_answered_by_its_own_name(cli, arguments, last_line):
    outcome = cli("serve", *arguments)
    assert (outcome.code, outcome.err) == (2, f"{last_line}\n")


@pytest.mark.parametrize("flag", ["--enable-auto-tool-choice", "--quantization", "--root-path", "--uvicorn-log-level"])
def test_what_people_paste_most_gets_no_hint_at_another_flag(cli, flag):
    message = cli("serve", flag, "x").last_line
    assert message.startswith(f"error: {flag}: ")
    assert "did you mean" not in message


def test_a_value_that_is_spelt_like_a_flag_is_a_value(cli, model):
    assert cli("run", "demo", "hi", "--system", "-ngl").code == 0
    assert cli("run", "demo", "--", "-ngl").code == 0
    assert [call.prompt for call in model.llm.calls] == ["user:-ngl\nassistant:"]
