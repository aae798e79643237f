"""Flags of other engines' benchmarks that `jaxinfer bench VERB` does not take, each with its reason or our name for it.

tests/cli/flags_of_benchmarks.json lists those of `vllm bench`, sglang.bench_serving and llama-bench; a test finds each
among the verb's options, here, or in jaxinfer/cli/foreign.py, which counts where nothing here does.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

AS_IT_IS = "not needed: it asks for what is so anyway; drop it"
LOADS = "use --loads REQUESTS:IN:OUT"
ALL = ""  # for every verb that a group does not name
GREEDY = "not yet: requests are greedy and ask for nothing else"
RANDOM = "not yet: prompts are random token ids, of one length"

# flags and patterns, and what each verb says of them. A verb that a group does not name sends to the first that has it.
GROUPS: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        "--input-len --random-input-len --sonnet-input-len --prefix-repetition-suffix-len --gsp-question-len "
        "--n-prompt -p -pg",
        {
            "serve": "use --input-tokens",
            "latency": "use --prompt-lengths",
            "throughput": LOADS,
            "compare": "use --input-tokens",
        },
    ),
    (
        "--output-len --random-output-len --sonnet-output-len --sharegpt-output-len --hf-output-len "
        "--custom-output-len --spec-bench-output-len --speed-bench-output-len --prefix-repetition-output-len "
        "--gsp-output-len --n-gen -n",
        {
            "serve": "use --output-tokens",
            "latency": "not needed: decoding is timed over 128 tokens",
            "throughput": LOADS,
            "compare": "use --output-tokens",
        },
    ),
    (
        "--num-prompts",
        {
            "serve": "use --requests",
            "latency": "use --batch-sizes",
            "throughput": LOADS,
            "compare": "use --requests",
        },
    ),
    ("--request-rate", {"serve": "use --rate"}),
    (
        "--max-concurrency",
        {
            "serve": "use --concurrency",
            "latency": "use --batch-sizes",
            "throughput": "use --max-num-seqs",
            "compare": "use --at-once",
        },
    ),
    ("--batch-size", {"latency": "use --batch-sizes", "serve": "use --concurrency", "compare": "use --at-once"}),
    ("-d --n-depth", {"latency": "use --context", "throughput": LOADS, "serve": "use --shared-prefix-tokens"}),
    (
        "--random-prefix-len --sonnet-prefix-len --prefix-len --prefix-repetition-prefix-len --gsp-system-prompt-len",
        {"serve": "use --shared-prefix-tokens", "latency": "use --cached-prefix"},
    ),
    ("--prefix-repetition-num-prefixes --gsp-num-groups", {"serve": "use --shared-prefixes"}),
    ("--base-url --host --port", {"serve": "use --url", "compare": "use --a URL and --b URL"}),
    (
        "--endpoint",
        {
            "serve": "not needed: requests go to /v1/completions",
            ALL: "not needed: no server is asked but by `jaxinfer bench serve`",
        },
    ),
    (
        "--backend",
        {
            "serve": "not needed: every OpenAI-compatible server is asked alike",
            ALL: "not needed: the engine is jaxinfer's own; `jaxinfer bench serve` asks other servers",
        },
    ),
    ("--served-model-name", {"serve": "use --model"}),
    (
        "--num-warmups --warmup-requests --num-iters-warmup",
        {"serve": "use --warm-up", ALL: "not needed: every step has run before the clock starts"},
    ),
    (
        "--num-iters --repetitions -r --delay",
        {
            "throughput": "use --tries",
            "suite": "use --runs",
            "latency": "not needed: the best of several calls counts",
            ALL: "not needed: the report has percentiles of all requests",
        },
    ),
    (
        "--output-json --output-file --output-details --save-result --save-detailed --append-result --result-dir "
        "--result-filename --output -o --output-err -oe",
        {ALL: "use --json FILE"},
    ),
    ("--goodput", {"serve": "use --ttft-limit-ms and --itl-limit-ms"}),
    (
        "--percentile-metrics --metric-percentiles",
        {"serve": "not needed: the report has the mean, p50, p90 and p99", ALL: "not needed: the best call counts"},
    ),
    ("--disable-tqdm", {ALL: "use --quiet"}),
    ("--progress --ignore-eos --tokenize-prompt", {ALL: AS_IT_IS}),
    ("--disable-ignore-eos", {ALL: "not yet: each answer has its whole length"}),
    ("--disable-stream", {ALL: "not yet: answers are streamed, or no token had a time"}),
    (
        "--profile --profile-*",
        {
            ALL: "use `jaxinfer profile`, or --profile-dir of `jaxinfer serve`",
        },
    ),
    (
        "--plot-* --timeline-itl-thresholds --print-requests",
        {ALL: "not yet: the report is tables and JSON (--json FILE)"},
    ),
    (
        "--label --metadata --tag --request-id-prefix",
        {ALL: "not needed: the report names server, machine, versions and load"},
    ),
    ("--header", {ALL: "not yet: no headers but a key's (--api-key-env of `jaxinfer bench serve`)"}),
    ("--ready-check-timeout-sec", {ALL: "not needed: a server that does not answer is told at once"}),
    ("--flush-cache", {ALL: "not needed: each prompt is new to the server's cache"}),
    ("--burstiness --ramp-up-*", {ALL: "not yet: requests come as a Poisson process of one rate"}),
    ("--probe-request-rate", {"serve": "use --interrupt-tokens"}),
    (
        "--dataset --dataset-* --random-range-ratio --random-batch-size --no-stream --no-oversample --no-reranker "
        "--disable-shuffle --hf-name --hf-split --hf-subset --sharegpt-* --sonnet-* --blazedit-* --bfcl-* --asr-* "
        "--spec-bench-* --speed-bench-* --timed-trace-* --self-timed --no-self-timed --custom-* --gsp-* "
        "--mooncake-* --use-trace-timestamps",
        {"compare": "use --prompts FILE", ALL: RANDOM},
    ),
    (
        "--random-mm-* --image-* --random-image-* --enable-multimodal-chat",
        {ALL: "not yet: text only, no images, audio or video"},
    ),
    (
        "--apply-chat-template --skip-chat-template --chat-template-kwargs --prompt-suffix --tokenizer-mode "
        "--skip-tokenizer-init",
        {ALL: "not needed: prompts are token ids, without text or template"},
    ),
    ("--tokenizer --trust-remote-code", {"serve": "not needed: prompts are token ids, without text or template"}),
    (
        "--temperature --top-p --top-k --min-p --frequency-penalty --presence-penalty --repetition-penalty --logprobs "
        "--extra-body --extra-request-body --use-beam-search --n --return-logprob --return-routed-experts",
        {ALL: GREEDY},
    ),
    ("--pd-separated", {ALL: "not yet: prompts and answers are computed by one engine"}),
    ("--lora-*", {ALL: "not yet: no LoRA adapters"}),
    (
        "--async-engine --disable-frontend-multiprocessing --disable-detokenize --hf-max-batch-size -embd -nopo -mmp",
        {ALL: "jaxinfer has nothing that it would change; drop it"},
    ),
)

# values that ask for what there is; of --random-range-ratio 0 means that for one of them, 1 for another
AS_THERE_IS = {
    "--backend": ("openai", "vllm", "sglang-oai"),
    "--endpoint": ("/v1/completions",),
    "--dataset-name": ("random", "random-ids"),
    "--burstiness": ("1", "1.0"),
    "--temperature": ("0", "0.0"),
}


def bench_reason(flag: str, verb: str) -> str | None:
    """What `bench VERB` says of a flag; None for one that other benchmarks do not have, or that needs no word here."""
    says = next((says for flags, says in GROUPS for name in flags.split() if name == flag), None)
    says = says or next((says for flags, says in GROUPS if any(fnmatchcase(flag, name) for name in flags.split())), {})
    if verb in says or ALL in says:
        return says.get(verb) or says[ALL]
    own = next((name for name, reason in says.items() if reason.startswith("use --")), None)
    return None if own is None else f"`jaxinfer bench {own}` has it: {says[own]}"


def bench_flags() -> Iterator[str]:
    """The flags that are here by name."""
    return (flag for flags, _ in GROUPS for flag in flags.split() if flag.startswith("--") and "*" not in flag)
