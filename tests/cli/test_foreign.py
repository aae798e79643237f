"""Flags of vLLM, SGLang, llama-server and ollama: each is ours, or has a reply by its own name."""

import importlib
import json
import os
from pathlib import Path

import click
import pytest

from jaxinfer.cli import VERBS
from jaxinfer.cli.foreign import AS_IT_IS, FALSE, FOREIGN, NEGATIONS, changes_nothing, refusal, reply
from jaxinfer.cli.options import with_dashes

LISTS: dict[str, str] = json.loads((Path(__file__).parent / "flags_of_others.json").read_text())
OURS = {
    name
    for param in importlib.import_module("jaxinfer.cli.serve").command.params
    for name in (*param.opts, *param.secondary_opts)
} | {"-h", "--help"}


@pytest.mark.parametrize("program", LISTS)
def test_every_flag_is_ours_or_has_a_reply(program):
    flags = LISTS[program].split()
    assert len(flags) > (10 if program == "ollama" else 300)
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
        (["-fa", "on"], "error: -fa: not needed: attention is chosen for the device (--attention-backend)"),
        (["-ngl", "99"], "error: -ngl: use --device cuda"),
        (["--n-gpu-layers", "0"], "error: --n-gpu-layers: use --device cpu"),
        (["--swap-space", "4"], "error: --swap-space: use --kv-offloading-bytes"),
        (["--enforce-eager"], "error: --enforce-eager: use --no-cuda-graphs"),
        (["--max-batch-size", "4"], "error: --max-batch-size: use --max-num-seqs"),
        (["--max-tokens", "4"], "error: --max-tokens: set it in the request: max_tokens"),
        (["--enable-lora"], "error: --enable-lora: not yet: no LoRA adapters"),
        (["--kv-cache-dtype", "fp8"], "error: --kv-cache-dtype: not yet: KV pages have the weights' dtype"),
        (
            ["demo", "--served-model-name", "a", "b"],
            "error: --served-model-name must have one name, got several; give it again for each: "
            "--served-model-name A --served-model-name B",
        ),
        (
            ["--no-warmup"],
            "error: --no-warmup: not needed: what a start compiles is kept for the next; "
            "--serve-early answers meanwhile",
        ),
        (["--xyzzy"], "error: unknown option of jaxinfer serve '--xyzzy', see `jaxinfer serve --help-all`"),
    ],
)
def test_a_pasted_flag_is_answered_by_its_own_name(cli, arguments, last_line):
    outcome = cli("serve", *arguments)
    assert (outcome.code, outcome.err) == (2, f"{last_line}\n")


@pytest.mark.parametrize("flag", ["--enable-auto-tool-choice", "--root-path", "--uvicorn-log-level"])
def test_what_people_paste_most_gets_no_hint_at_another_flag(cli, flag):
    message = cli("serve", flag, "x").last_line
    assert message.startswith(f"error: {flag}: ")
    assert "did you mean" not in message


MMAP = "not needed: weights are read once, from safetensors"
SAMPLER = "another sampler than the API's fields is not supported"
CARD = "use the variable CUDA_VISIBLE_DEVICES: the first GPU that is visible is taken"
LEVEL = "use --log-requests for a line per request; run, chat and batch say more with -v"
PLACE = "not needed: KV pages are on the device that --device names"
MATCHER = "not needed: llguidance keeps answers to their grammars"
NOTHING = "jaxinfer has nothing that it would change; drop it"
IMAGES = "not yet: text only, no images, audio or video"
SPECULATION = "not yet: no speculative decoding"
EXPERTS = "not yet: no model of experts runs here"
RECURRENT = "not yet: no model of recurrent or window layers runs here"
ADAPTERS = "not yet: no LoRA adapters"
ONE_GPU = "not yet: jaxinfer runs on one GPU; drop it"
ONE_ENGINE = "not yet: prompts and answers are computed by one engine"
KERNELS = "not needed: the kernels are chosen for the device"
UNSHIFTED = "a context is never cut or shifted"
HOLDS = AS_IT_IS
REASONS = {
    "--mmap --no-mmap --mlock --direct-io --no-direct-io --load-mode -lm --repack --check-tensors": MMAP,
    "--xtc-threshold --xtc-probability --typical-p --mirostat --samplers": SAMPLER,
    "-kvo -nkvo --kv-offload --no-kv-offload": PLACE,
    "--defrag-thold -dt": "not needed: KV pages never fragment",
    "--kv-unified -kvu -no-kvu": "not needed: all sequences share one pool of KV pages",
    "--timeout -to": "no request has a time limit here: let the client or a proxy end it",
    "--sse-ping-interval --sse-keep-alive-interval": "not needed: a stream that waits sends pings",
    "--grammar-backend --guided-decoding-backend --structured-outputs-config.backend": MATCHER,
    "--disable-fastapi-docs": "not yet: /docs cannot be turned off; let the proxy in front refuse it",
    "--no-webui --no-ui": "not yet: the chat page cannot be turned off; let the proxy in front refuse it",
    "--device-ids --main-gpu -mg --base-gpu-id": CARD,
    "--list-devices": "use `jaxinfer doctor`, which names the GPU; the variable CUDA_VISIBLE_DEVICES picks another",
    "--keep --context-shift": UNSHIFTED,
    "--no-context-shift --no-mmproj-offload --no-enforce-eager --nowordwrap --no-enable-log-requests": HOLDS,
    "-bs --backend-sampling": "not needed: answers are sampled on the device",
    "--gc-threshold --props --escape --no-host": NOTHING,
    "--sleep-on-idle": "not needed: an idle server waits without work",
    "--disable-overlap-schedule --no-async-scheduling": "use --run-ahead 0",
    "--no-cont-batching -nocb": "use --scheduling static",
    "--no-cache-prompt --disable-radix-cache": "use --no-enable-prefix-caching",
    "--log-level --uvicorn-log-level --log-level-http -lv": LEVEL,
    "--mmproj -mm --limit-mm-per-prompt --encoder-urls --mm-attention-backend": IMAGES,
    "-md -ngld --draft-max --model-draft --speculative-config --override-tensor-draft": SPECULATION,
    "--cpu-moe -ncmoe --moe-runner-backend --expert-balancedness-report-mode": EXPERTS,
    "--mamba-backend --kda-decode-backend --linear-attn-backend --swa-full": RECURRENT,
    "--specialize-active-lora --lora-scaled --lora-backend": ADAPTERS,
    "--control-vector --control-vector-scaled": "not yet: no control vectors",
    "--api-server-count -asc --threads-http": "not needed: one process takes all requests",
    "--all2all-backend --data-parallel-backend --nnodes -tp -dpa": ONE_GPU,
    "-dp --dp-size": "use --data-parallel-size, which `jaxinfer serve` has",
    "--disaggregation-transfer-backend --disaggregation-decode-host-receive-threshold": ONE_ENGINE,
    "--sampling-backend --enable-flashinfer-autotune --op-offload": KERNELS,
    "--models-autoload --models-dir": "not yet: one model per server",
    "--ssl-keyfile-password": "not yet: no client certificates or renewal; let a proxy in front do it",
    "--tokenizer-revision": "use --tokenizer with a folder, or --revision for the whole model",
}


@pytest.mark.parametrize(("flag", "reason"), [(flag, why) for flags, why in REASONS.items() for flag in flags.split()])
def test_a_reason_fits_its_flag(flag, reason):
    assert reply(flag) == f"{flag}: {reason}"


def test_no_flag_has_two_reasons_and_no_short_pattern_takes_long_flags():
    listed = [flag for _, flags in FOREIGN for flag in flags.split()]
    assert sorted(set(listed)) == sorted(listed)
    assert [flag for flag in listed if "*" in flag and not flag.startswith("--")] == []


def test_a_value_that_is_spelt_like_a_flag_is_a_value(cli, model):
    assert cli("run", "demo", "hi", "--system", "-ngl").code == 0
    assert cli("run", "demo", "--", "-ngl").code == 0
    assert [call.prompt for call in model.llm.calls] == ["user:-ngl\nassistant:"]


@pytest.mark.parametrize(
    ("words", "last_line"),
    [
        (["chat", "--temp", "0.5"], "--temp: use --temperature"),
        (["run", "demo", "hi", "-n", "5"], "-n: use --max-tokens"),
        (["run", "demo", "hi", "--n-predict=5"], "--n-predict: use --max-tokens"),
        (["run", "demo", "hi", "-r", "END"], "-r: use --stop"),
        (["serve", "--temp", "0.5"], "--temp: set it in the request: temperature"),
        (
            ["run", "demo", "hi", "--repeat-penalty", "1"],
            "--repeat-penalty: not yet: only a request to `jaxinfer ",
        ),
        (["batch", "x.jsonl", "-o", "-", "--repeat-penalty", "1"], "--repeat-penalty: set it in the row: repetition_"),
        (["batch", "x.jsonl", "-o", "-", "--output-len", "4"], "--output-len: use --max-tokens"),
        (["batch", "x.jsonl", "-o", "-", "--random-output-len", "4"], "--random-output-len: use --max-tokens"),
        (["batch", "x.jsonl", "-o", "-", "--output-err", "e"], "unknown option of jaxinfer batch '--output-err', see "),
        (["batch", "demo", os.sep, "-o", "-"], f"{os.sep} must be a file of rows, it is a folder; name a file"),
        (["list", "-q"], "unknown option of jaxinfer list '-q', see `jaxinfer list --help-all`"),
        (["list", "--n-gpu-layers", "9"], "unknown option of jaxinfer list '--n-gpu-layers', see `jaxinfer list "),
        (["pull", "x", "--trust-remote-code"], "--trust-remote-code: never: code from a checkpoint is not run"),
        (["serve", "--quantization=awq"], "--quantization must be one of auto, int8, int4, got 'awq'"),
    ],
)
def test_a_pasted_flag_is_answered_as_the_verb_has_it(cli, model, words, last_line):
    outcome = cli(*words)
    assert (outcome.code, model.made) == (2, [])
    assert outcome.last_line.startswith(f"error: {last_line}")


@pytest.mark.parametrize(
    "words",
    [
        ["--tensor-parallel-size", "1"],
        ["--tensor-parallel-size=1"],
        ["-tp", "1"],
        ["--pipeline-parallel-size", "1", "--max-tokens", "3"],
        ["--kv-cache-dtype", "auto"],
    ],
    ids=" ".join,
)
def test_a_flag_of_others_with_a_value_that_changes_nothing_is_taken_and_named(cli, model, words):
    outcome = cli("run", "demo", "hi", *words)
    assert outcome.code == 0 and outcome.out == "Hello\n"
    assert f"{words[0].replace('=', ' ')}" in outcome.err and " changes nothing here\n" in outcome.err
    assert cli("run", "demo", "hi", "--tensor-parallel-size", "2").code == 2


@pytest.mark.parametrize(
    "words",
    [
        *("--no-enforce-eager", "--no-trust-remote-code", "--trust-remote-code=false", "--no-enable-lora"),
        *("--no-calculate-kv-scales", "--no-enable-sleep-mode", "--enforce-eager off", "--nowordwrap"),
    ],
)
def test_a_switch_that_asks_for_what_is_so_is_taken_and_named(cli, model, words):
    outcome = cli("run", "demo", *words.split(), "hi")
    assert (outcome.code, outcome.out) == (0, "Hello\n"), outcome.err
    assert f"{words.split()[0]} changes nothing here\n" in outcome.err
    assert [call.prompt for call in model.llm.calls] == ["user:hi\nassistant:"]


def negated(flag: str) -> str:
    return f"--no-{flag.removeprefix('--')}"


def test_no_negated_flag_is_told_what_the_flag_is_told_to_do():
    """Whoever asks for less must not be told the option that does what the flag does."""
    flags = {flag for listed in LISTS.values() for flag in listed.split() if flag.startswith("--")} - OURS
    plain = [flag for flag in flags if not flag.startswith("--no-") and negated(flag) not in flags]
    assert len(plain) > 1000
    for flag in plain:
        said, other = str(refusal(flag, "true", OURS)), refusal(negated(flag), "", OURS)
        reason, opposite = said.partition(": ")[2], str(other).partition(": ")[2]
        is_request = reason.startswith("use --") or "not yet: " in reason or reason.startswith("never: ")
        assert not is_request or opposite != reason, flag
        words = {str(refusal(flag, word, OURS)).partition(": ")[2] for word in FALSE}
        may_be_value = reason.startswith("use --") and words == {reason}  # as of --log-level off
        assert words == {opposite} or may_be_value, flag


@pytest.mark.parametrize("flag", ["--log-level", "--tokenizer-path", "--max-total-tokens", "--data-parallel-size"])
def test_a_value_that_is_a_word_of_negation_is_not_dropped(flag):
    assert not any(changes_nothing(str(refusal(flag, word, set())), word) for word in FALSE)


@pytest.mark.parametrize("given", [["--data-parallel-size", "1"], ["-dp", "1"], ["--dp-size=1"]])
def test_one_replica_is_what_there_is(cli, given):
    assert "changes nothing here" in cli("run", "demo", "hi", *given).err


def test_a_switch_that_asks_for_what_is_so_takes_no_word_of_the_prompt(cli, model):
    outcome = cli("run", "demo", "--nowordwrap", "no")
    assert "--nowordwrap changes nothing here" in outcome.err and "needs a prompt" not in outcome.err


def test_negations_are_of_reasons_that_there_are():
    assert set(NEGATIONS) <= {reason for reason, _ in FOREIGN}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "demo", "-p", "hi"], "-p: write it behind the model: `jaxinfer run MODEL PROMPT`"),
        (
            ["run", "demo", "hi", "--format", "json"],
            "--format: not yet: only a request to `jaxinfer serve` ",
        ),
        (["run", "demo", "hi", "--keepalive", "5m"], "--keepalive: not needed: a model stays with its server"),
        (["pull", "x/y", "--insecure"], "--insecure: never: models are downloaded over HTTPS alone"),
        (["serve", "--enable-reasoning"], "--enable-reasoning: not needed: reasoning is taken out"),
        (["serve", "--no-enable-reasoning"], "--no-enable-reasoning: not needed: reasoning is taken out"),
        (["serve", "--verbose-prompt"], "--verbose-prompt: never: prompts are not logged"),
        (["serve", "--override-generation-config", "{}"], "--override-generation-config: not yet: set sampling fields"),
        (["serve", "--no-prefix-caching"], "--no-prefix-caching: use --no-enable-prefix-caching"),
        (["serve", "-Z", "4"], "unknown option of jaxinfer serve '-Z', see `jaxinfer serve --help-all`"),
        (
            ["serve", "demo", "--generation-config", "/x"],
            "--generation-config must be one of auto, none, got '/x'; auto reads generation_config.json in",
        ),
        (
            ["serve", "demo", "--page-size", "3"],
            "--page-size must be an integer in 1 .. 4096, a power of two or ",
        ),
    ],
)
def test_a_flag_that_people_bring_gets_its_own_answer(cli, model, words, said):
    outcome = cli(*words)
    assert (outcome.code, model.made) == (2, [])
    assert outcome.last_line.startswith(f"error: {said}")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_only_options_that_it_has(verb):
    command = importlib.import_module(f"jaxinfer.cli.{verb}").command
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    if "--max-model-len" in own:
        return  # it takes an engine's options, as serve does
    for flags in LISTS.values():
        for said in filter(None, (refusal(flag, "", own) for flag in flags.split() if flag not in own)):
            named = said.partition(": use --")[2].split(" ")[0].rstrip(",:;")
            assert not named or f"--{named}" in own, said


@pytest.mark.parametrize(
    ("flag", "values", "cure"),
    [
        (
            "--quantization",
            ("awq", "fp8", "gptq", "bitsandbytes"),
            "not yet: other methods; int8 and int4 round at load",
        ),
        ("--dtype", ("half", "float", "fp8"), "half is float16, float is float32; not yet: fp8"),
        ("--load-format", ("gguf", "bitsandbytes", "runai_streamer"), "weights are read from safetensors alone"),
        ("--device", ("tpu", "xpu", "cuda:1"), "not yet: other accelerators; the variable CUDA_VISIBLE_DEVICES picks"),
        ("--attention-backend", ("FLASH_ATTN", "flashinfer", "triton"), "attention is chosen for the device"),
        ("--tool-call-parser", ("mistral", "granite"), "the model's chat template says it"),
        ("--reasoning-parser", ("granite", "deepseek-v3"), "the model's chat template says it"),
        ("--generation-config", ("vllm",), "none reads none"),
    ],
)
def test_another_program_s_value_of_our_flag_is_told_why_not(cli, flag, values, cure):
    for value in values:
        outcome = cli("serve", "demo", flag, value)
        assert outcome.code == 2 and outcome.last_line.startswith(f"error: {flag} must be one of auto, ")
        assert cure in outcome.last_line.partition(f"got '{value}'; ")[2]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("bench", "help", "version")])
def test_each_flag_of_ours_is_taken_with_underscores_too(verb):
    """As vLLM takes it, with its value behind it or behind a sign."""
    command = importlib.import_module(f"jaxinfer.cli.{verb}").command
    options = [param for param in command.params if isinstance(param, click.Option)]
    for option in options:
        for flag in option.opts + option.secondary_opts:
            underscored = f"--{flag.removeprefix('--').replace('-', '_')}"
            if flag.startswith("--") and underscored != flag:
                assert with_dashes(options, [underscored, "a_b"]) == [flag, "a_b"]
                assert with_dashes(options, [f"{underscored}=--a_b", "--"]) == [f"{flag}=--a_b", "--"]
                assert with_dashes(options, ["--", underscored]) == ["--", underscored], "a word"
                assert with_dashes(options, ["x", f"{underscored}_x"]) == ["x", f"{underscored}_x"]
    for option in options:
        if not option.is_flag:
            assert with_dashes(options, [option.opts[0], "--max_modl_len"])[1] == "--max_modl_len", "its value"


@pytest.mark.parametrize(
    "flag", ["--max_model_len", "--max-model-len", "--max_model_len=5", "--no_enable_prefix_caching"]
)
@pytest.mark.parametrize("before", ["--system", "--model", "--dtype", "--max-num-seqs"])
def test_a_flag_with_underscores_is_no_value_of_another_flag_either(cli, before, flag):
    outcome = cli("run", "demo", before, flag, "5")
    assert outcome.code == 2
    assert outcome.last_line.startswith(f"error: {before} needs a value, got none before {flag.replace('_', '-')}; ")


def test_a_flag_with_underscores_is_told_and_cured_as_the_one_with_dashes(cli):
    assert cli("plan", "demo", "--for", "cpu", "--max_model_len", "1K", "--no_enable_chunked_prefill").code == 0
    assert "--max-model-len" in cli("plan", "demo", "--for", "cpu", "--max_model_len=1").last_line
    assert "--served-model-name" in cli("serve", "--served_model_name", "a", "b", "demo").last_line
    assert "did you mean '--max-model-len'?" in cli("plan", "demo", "--max_modl_len", "9").last_line
