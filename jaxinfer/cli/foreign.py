"""Flags of vLLM, SGLang, llama-server and ollama that jaxinfer does not take, each with its reason or our name for it.

tests/cli/flags_of_others.json lists every flag of the four; a test finds each among our options or here.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

from jaxinfer.cli.foreign_bench import AS_IT_IS, AS_THERE_IS, bench_flags, bench_reason
from jaxinfer.cli.foreign_verbs import verb_reason
from jaxinfer.config import flag_of

# reason: flags, and patterns of flags. A flag by its own name counts before any pattern, then the first pattern that
# fits: patterns of a subject stand before those of an ending (--*-backend).
ONE_GPU = "not yet: jaxinfer runs on one GPU; drop it"
REPLICAS = "use --data-parallel-size, which `jaxinfer serve` has"
FOREIGN: tuple[tuple[str, str], ...] = (
    ("use --device", "-ngl --gpu-layers --n-gpu-layers"),
    (REPLICAS, "--data-parallel-size -dp --dp --dp-size"),
    ("use --max-model-len", "-c --ctx-size --num-ctx --context-bucket --fit-ctx -fitc --max-seq-len"),
    (
        "use --max-num-seqs",
        "-np --parallel --max-running-requests --max-num-active-seqs --max-batch-size --max-concurrent-requests",
    ),
    ("use --max-num-queued-seqs", "--max-num-queued-reqs --max-num-queued-tokens --max-queued-requests"),
    (
        "use --max-num-batched-tokens",
        "-b --batch-size -ub --ubatch-size --chunked-prefill-size --max-prefill-tokens "
        "--max-num-scheduled-tokens --prefill-max-requests --long-prefill-token-threshold* --prefill-chunk*",
    ),
    ("use --num-pages", "--num-gpu-blocks-override --max-total-tokens"),
    ("use --served-model-name", "-a --alias"),
    ("use --tokenizer", "--tokenizer-path"),
    ("use --chat-template", "--chat-template-file --hf-chat-template-name"),
    ("use --default-chat-template-kwargs", "--chat-template-kwargs"),
    ("use --seed", "-s --random-seed"),
    ("use --gpu-memory-utilization", "--device-memory-utilization -fit --fit -fitt --fit-target"),
    (
        "use --kv-offloading-bytes",
        "--swap-space --kv-offloading-* --hicache-* --enable-hicache --cache-ram -cram "
        "--enable-hierarchical-cache --enable-flexkv --flexkv-* --enable-lmcache --lmcache-*",
    ),
    ("use --no-enable-prefix-caching", "--disable-radix-cache --disable-chunked-prefix-cache --no-cache-prompt"),
    (
        "use --enable-prefix-caching, which is on",
        "--cache-prompt --cache-reuse --radix-* --prefix-cach* --prefix-match-unit",
    ),
    ("use --no-cuda-graphs", "--enforce-eager --disable-cuda-graph --disable-*-cuda-graph"),
    (
        "not needed: every step is a CUDA graph of its own size (--no-cuda-graphs turns them off)",
        "--cuda-graph-* --cudagraph-* --max-cudagraph-* --disable-cuda-graph-padding "
        "--enable-profile-cuda-graph --enable-cudagraph-gc --debug-cuda-graph --max-seq-len-to-capture",
    ),
    ("use --hf-overrides", "--json-model-override-args --override-kv"),
    (
        "use --hf-overrides with the key rope_scaling, as in "
        """'{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'""",
        "--rope-* --yarn-*",
    ),
    ("use --hf-overrides with the key rope_theta", "--rope-freq-base --rope-theta"),
    ("use --generation-config auto (the model's) or none (OpenAI's)", "--sampling-defaults"),
    (
        "not yet: set sampling fields in the request, or in generation_config.json of the model's folder",
        "--override-generation-config --preferred-sampling-params",
    ),
    ("use --attention-backend", "-ac --attention-config --decode-attention-backend --prefill-attention-backend"),
    ("use --ssl-certfile", "--ssl-cert-file"),
    ("use --ssl-keyfile", "--ssl-key-file"),
    ("use --allowed-origins", "--cors-origins"),
    (
        "not needed: --allowed-origins answers all that CORS asks",
        "--allow-credentials --allowed-headers --allowed-methods --cors-credentials --cors-headers --cors-methods",
    ),
    ("use --drain-timeout-s", "--shutdown-timeout"),
    ("use --stall-timeout-s", "--watchdog-* --soft-watchdog-timeout"),
    ("use --log-requests", "--enable-log-* --log-requests-* --uvicorn-access-log* --max-log-len --log-prompts-dir"),
    ("use --log-format", "--log-jsonl --logging-config --log-config-file --log-prefix --log-timestamps --log-colors"),
    ("use --profile-dir", "--profiler-config --enable-layerwise-nvtx-* --ray-workers-use-nsight"),
    ("use --otlp-traces-endpoint", "--enable-trace --otlp-service-name --trace-modules --collect-detailed-traces"),
    ("use --files-dir", "--file-storage-path"),
    ("use --max-stored-responses", "--enable-response-store"),
    ("use `jaxinfer list`", "-cl --cache-list"),
    ("use the variable HF_TOKEN or `hf auth login`", "-hft --hf-token"),
    ("use the variable HF_HUB_OFFLINE=1", "--offline"),
    ("name the model first: `jaxinfer serve MODEL`", "-hf -hfr --hf-repo"),
    ("set it in the request: temperature", "--temp --temperature"),
    (
        "set it in the request: max_tokens",
        "-n --predict --n-predict --max-tokens --max-new-tokens --output-len --*-output-len --n-gen",
    ),
    ("set it in the request: top_k", "--top-k"),
    ("set it in the request: top_p", "--top-p"),
    ("set it in the request: min_p", "--min-p"),
    ("set it in the request: presence_penalty", "--presence-penalty"),
    ("set it in the request: frequency_penalty", "--frequency-penalty"),
    ("set it in the request: repetition_penalty", "--repeat-penalty"),
    ("set it in the request: ignore_eos", "--ignore-eos"),
    ("set it in the request: logit_bias", "-l --logit-bias"),
    ("set it in the request: stop", "-r --reverse-prompt"),
    ("set it in the request: return_tokens_as_token_ids", "--return-tokens-as-token-ids"),
    (
        "set it in the request: response_format, structured_outputs",
        "--format --grammar --grammar-file -j --json-schema* -jf",
    ),
    (
        "set it in the request: reasoning_effort, thinking_token_budget, or --default-chat-template-kwargs",
        "-rea --reasoning --reasoning-effort* --reasoning-budget* --reasoning-preserve --anthropic-disabled-* "
        "--reasoning-config",
    ),
    ("set it in the request: stream_options", "--stream-response-default-include-usage --enable-force-include-usage"),
    ("set it in the request: dimensions", "--dimensions"),
    ("set it in the request: priority", "--default-priority-value"),
    ("never: code from a checkpoint is not run", "--trust-remote-code --code-revision"),
    (
        "never: code that a flag names is not loaded",
        "--tool-parser-plugin --reasoning-parser-plugin --io-processor-plugin --middleware "
        "--logits-processors --logits-processor* --enable-custom-logit-processor --worker-cls "
        "--worker-extension-cls --scheduler-cls --custom-weight-loader --forward-hooks",
    ),
    ("never: a request's template is not run", "--trust-request-chat-template"),
    (
        "never: tools run where the client is",
        "--tools --tools-runtime --tool-server --mcp-servers-* -ag -no-ag --agent --ui-mcp-proxy --webui-mcp-proxy",
    ),
    (
        "not needed: tools are always on, and how the model calls them is detected (--tool-call-parser)",
        "--enable-auto-tool-choice --exclude-tools-when-tool-choice-none",
    ),
    ("not needed: the chat template is always Jinja", "--jinja --chat-template-content-format --interleave-mm-strings"),
    (
        "not needed: reasoning is taken out of the answer where the template has it",
        "--reasoning-format --enable-reasoning --skip-chat-parsing --strip-thinking-cache --enable-strict-thinking",
    ),
    ("not needed: usage has cached tokens", "--enable-cache-report --enable-prompt-tokens-details"),
    ("not needed: batches are continuous", "-cb --cont-batching --enable-mixed-chunk --enable-dynamic-chunking"),
    (
        "not needed: each step runs beside the one before (--run-ahead)",
        "--async-scheduling --num-scheduler-steps --num-continuous-decode-steps --enable-*-batch-overlap "
        "--enable-dbo --dbo-* --ubatch-* --scheduler-recv-interval --tbo-* --enable-pdmux --pdmux-* "
        "--sm-group-num",
    ),
    ("not needed: the chat page is always at /", "--ui --webui --ui-* --webui-* --path"),
    ("not yet: no models that rank documents", "--rerank --reranking"),
    (
        "not needed: /v1/embeddings and /score are always on",
        "--embedding --embeddings --runner --convert --is-embedding --embd-normalize --task",
    ),
    ("set it in the request: pooling, which is last or mean; without it last", "--pooling --pooler-config"),
    (
        "not needed: requests have priorities always",
        "--enable-priority-scheduling --scheduling-policy --schedule-policy "
        "--schedule-low-priority-values-first --*priority-preemption --abort-on-priority-when-disabled "
        "--priority-scheduling-*",
    ),
    (
        "not needed: sessions hold their pages",
        "--slot-* -sps --slots --enable-streaming-session --enable-session-* --cache-idle-slots -ctxcp "
        "--ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step",
    ),
    (
        "not needed: what a start compiles is kept for the next; --serve-early answers meanwhile",
        "--no-warmup --skip-server-warmup",
    ),
    (
        "not needed: the step's programs are compiled before the first request",
        "--warmup --warmups --compilation-config -cc --optimization-level "
        "--performance-mode --enable-torch-compile* --torch-compile-* --jit-monitor-* --enable-trace-replay "
        "-O -O?",
    ),
    ("not needed: one process takes all requests", "--api-server-count -asc --threads-http"),
    ("not needed: the answer names its request id", "--enable-request-id-headers"),
    (
        "not needed: weights are read once, from safetensors",
        "--safetensors-* --pt-load-map-location --ignore-patterns --weight-loader-* "
        "--model-loader-extra-config --use-tqdm-on-load --max-parallel-loading-workers --check-tensors "
        "--repack -nr --delete-ckpt-after-loading --model-checksum --weight-cache-* "
        "--startup-weight-load-mode --modelexpress-config -lm --load-mode -lzm --lazy-mode --mmap --mlock "
        "-dio -ndio --direct-io",
    ),
    (
        "not needed: the tokenizer is the fast one, in the server's process",
        "--tokenizer-* --detokenizer-worker-num --enable-tokenizer-* --disable-tokenizer-* "
        "--renderer-num-workers --enable-dynamic-batch-* --dynamic-batch-*",
    ),
    (
        "not needed: float32 answers do not depend on their neighbours",
        "--enable-deterministic-inference --rl-on-policy-target",
    ),
    (
        ONE_GPU,
        "--tensor-parallel-size --pipeline-parallel-size "  # by name, for what is spelt like them
        "--tensor-parallel-* -tp --tp --tp-size --pipeline-parallel-* -pp --pp-* --data-parallel-* "
        "--*-parallel-size --expert-parallel* -ep --ep --ep-* --enable-expert-parallel --enable-ep-* -dcp "
        "--dcp-* -pcp --attn-cp-* --attn-dp-* --attn-tp-* --attention-*-parallel-* --enable-dp-* "
        "--enable-attn-tp-* --enable-tp-* --enable-prefill-cp --enable-cp-* --cp-* --dwdp-* --nnodes "
        "--node-rank --master-addr --master-port --dist-* --distributed-* --nccl-* --enable-nccl-* "
        "--disable-nccl-* --enable-p2p-* --enable-mscclpp --enable-symm-mem --enable-torch-symm-mem "
        "--disable-custom-all-reduce --all2all-* --use-ray --load-balance-method "
        "--enable-elastic-* --elastic-* --max-ep-size --max-parallel-* -sm --split-mode -ts --tensor-split "
        "--rpc --cpu-distributed-* --enable-layernorm-sp --enable-hc-sp --enable-quant-communications "
        "--boundary-reduction --enable-kv-cache-sharding --fault-tolerance-* --enable-fault-* "
        "--prefill-context-* --enable-dense-mlp-* --enable-shared-experts-attn-tp --enable-batch-sharded-* "
        "-dpa -dpb -dpe -dph -dpl -dpm -dpn -dpp -dpr --pre-warm-nccl --dp-* --headless",
    ),
    (
        "not yet: no model of experts runs here",
        "--*expert* --*eplb* --*moe* --n-cpu-moe -cmoe -ncmoe -cmoed -ncmoed --enable-return-routed-* "
        "--enable-paged-experts --kt-* --dsa-* --dsv4-* --enable-dsa-* --fuseep-* --enable-waterfill "
        "--enable-deepseek-* --moe-* --expert-balancedness-* --deepep-*",
    ),
    (
        "not yet: weights are bfloat16, float16 or float32, which --quantization int8 or int4 rounds at load",
        "--quantization-* -q --allow-deprecated-quantization --quantize-and-serve --modelopt-* --rl-quant-* "
        "--*-gemm-* --enable-w4a4-* --torchao-* --decrypted-*",
    ),
    (
        "not yet: KV pages have the weights' dtype",
        "--kv-cache-dtype* -ctk -ctv --cache-type-* --calculate-kv-scales --prefill-kv-cache-dequant-dtype -ctkd -ctvd",
    ),
    (
        "not yet: no speculative decoding",
        "-sc --draft* --decoupled-spec-* --*-draft --enable-draft-* --lookup-* -lcs -lcd "
        "--num-lookahead-slots --enable-multi-layer-eagle --num-speculative-* --ngram-* --spec-* "
        "--speculative-* -md -ngld -devd -hfd -hfrd -Cd -Crd -Cbd -Crbd -td -tbd -otd --override-tensor-draft "
        "--per-request-spec-*",
    ),
    ("not yet: no LoRA adapters", "--lora* --enable-lora* --*-lora* --*loras* --fully-sharded-loras"),
    ("not yet: no control vectors", "--control-vector*"),
    (
        "not yet: text only, no images, audio or video",
        "--*mm-* --limit-mm-* --*multimodal* --image-* --video-* --allowed-local-media-path "
        "--allowed-media-domains --media-* --language-* --mtmd-* --asr-* --enable-mm-* --disable-fast-image-* "
        "--enable-precise-embedding-* --media-path --trust-request-mm-kwargs --mm-* --mmproj* -mm -mmu -mmdev "
        "--encoder-* --enable-adaptive-dispatch-to-encoder",
    ),
    (
        "not yet: no model of recurrent or window layers runs here",
        "--*mamba* --*swa-* --*sliding-window --*replayssm* --disable-hybrid-* --enable-hybrid-* "
        "--enable-*-bounded-* --c128-* --gdn-* --kda-* --linear-attn-*",
    ),
    (
        "not yet: prompts and answers are computed by one engine",
        "--disaggregation-* --kv-transfer-config --kv-events-config --ec-* --enable-pd-* "
        "--optimistic-prefill-* --enable-prefill-delayer --prefill-delayer-* --mooncake-* --remote-instance-* "
        "--weight-transfer-config --checkpoint-engine-* --engine-info-* --enable-scale-out --load-publish-* "
        "--load-snapshot-*",
    ),
    (
        "not yet: only HTTP/1.1 over TCP",
        "--grpc* --uds --http2-* --enable-http2 --smg-* --sidecar* --reuse-port --enable-http-worker-* --h11-*",
    ),
    (
        "not yet: no prefix of the path; let the proxy in front take it off",
        "--root-path --fastapi-root-path --api-prefix",
    ),
    (
        "not yet: no client certificates or renewal; let a proxy in front do it",
        "--ssl-ca-certs --ssl-cert-reqs --ssl-ciphers --enable-ssl-refresh --ssl-keyfile-password",
    ),
    (
        "not yet: weights stay on the device",
        "--cpu-offload-* --offload-* --enable-sleep-mode --enable-memory-saver --enable-*-cpu-backup "
        "--ple-offload-* -ncffn --n-cpu-ffn -ot --override-tensor "
        "--sleep-idle-seconds --sleep-mode-* --sleep-preserve-parameter-names",
    ),
    ("not yet: one model per server", "--tags --models-*"),
    (
        "not yet: token ids, embeddings and hidden states as inputs and outputs are those of the API",
        "--enable-prompt-embeds --*-hidden-states* --return-* --tokens-only --logprobs-mode --enable-return-* "
        "--sampling-mask-*",
    ),
    ("GGUF is not supported: take the safetensors version", "-hff --hf-file -mu --model-url -dr --docker-repo"),
    (
        "how the CPU's threads run is XLA's own: use the variable XLA_FLAGS or taskset",
        "-t --threads* -tb --cpu-mask* --cpu-range* --cpu-strict* --prio* --poll* -C -Cb -Cr -Crb",
    ),
    (
        "another sampler than the API's fields is not supported",
        "--samplers --sampler-seq --sampling-seq --top-n* --xtc-* --typical* --dry-* --adaptive-* "
        "--dynatemp-* --mirostat*",
    ),
    ("a context is never cut or shifted", "--context-shift --allow-auto-truncate --keep --truncate"),
    ("presets of models by download are not supported: name the model", "--*-default --fim-*"),
    ("write it behind the model: `jaxinfer run MODEL PROMPT`", "-p --prompt"),
    ("not needed: a model stays with its server, and is loaded for one command elsewhere", "--keepalive"),
    ("never: models are downloaded over HTTPS alone", "--insecure"),
    ("never: prompts are not logged", "--verbose-prompt"),
    ("not needed: answers are sampled on the device", "-bs --backend-sampling"),
    ("not yet: thoughts are shown with the answer", "--hidethinking"),
    ("not yet: no agent works in the terminal", "--experimental*"),
    (AS_IT_IS, "--nowordwrap"),
    ("use `jaxinfer --version`", "--version"),
    ("use --help", "--usage"),
    ("use --default-chat-template-kwargs", "-dc"),
    ("set it in the request: add_generation_prompt, continue_final_message", "--prefill-assistant"),
    (
        "use the variable CUDA_VISIBLE_DEVICES: the first GPU that is visible is taken",
        "-mg --main-gpu --device-ids --base-gpu-id --gpu-id-step",
    ),
    ("use `jaxinfer doctor`, which names the GPU; the variable CUDA_VISIBLE_DEVICES picks another", "--list-devices"),
    ("use --device cuda or cpu; the variable CUDA_VISIBLE_DEVICES picks the GPU", "-dev"),
    ("not needed: KV pages are on the device that --device names", "-kvo -nkvo --kv-offload"),
    ("not needed: KV pages never fragment", "-dt --defrag-thold"),
    ("not needed: all sequences share one pool of KV pages", "-kvu -no-kvu --kv-unified --kv-unified-per-slot"),
    (
        "not needed: attention is chosen for the device (--attention-backend)",
        "-fa --flash-attn --triton-attention-* --disable-cascade-attn",
    ),
    ("no request has a time limit here: let the client or a proxy end it", "-to --timeout"),
    ("not needed: a stream that waits sends pings", "--sse-*"),
    (
        "not needed: each step's tokens are sent at once",
        "--stream-interval --incremental-streaming-output --batch-notify-size",
    ),
    ("not needed: /tokenize and /detokenize are always on", "--enable-tokenizer-info-endpoint"),
    ("send token ids in the request: the prompt of /v1/completions may be a list of them", "--skip-tokenizer-init"),
    ("use --tokenizer with a folder, or --revision for the whole model", "--tokenizer-revision"),
    (
        "not needed: llguidance keeps answers to their grammars",
        "--grammar-backend --guided-decoding-backend --structured-outputs-config --disable-outlines-disk-cache",
    ),
    ("not yet: the white space of JSON answers has no setting", "--constrained-json-*"),
    ("not yet: /docs cannot be turned off; let the proxy in front refuse it", "--disable-fastapi-docs"),
    ("not yet: the chat page cannot be turned off; let the proxy in front refuse it", "--no-ui --no-webui"),
    ("not needed: the API pages at /docs need no other site", "--enable-offline-docs"),
    ("not needed: an idle server waits without work", "--sleep-on-idle"),
    ("use --run-ahead 0", "--disable-overlap-schedule --no-async-scheduling"),
    ("use --scheduling static", "-nocb --no-cont-batching"),
    (
        "use --log-requests for a line per request; run, chat and batch say more with -v",
        "--log-level* --uvicorn-log-level -v --verbose --log-verbose -lv --verbosity --log-verbosity",
    ),
    ("the log is on stderr: redirect it", "--log-disable --log-file"),
    (
        "not needed: no request is logged without --log-requests",
        "--disable-uvicorn-access-log --disable-access-log-* --disable-log-requests",
    ),
    ("not needed: the log has each failure of the server", "--log-error-stack"),
    ("not yet: all keys may do the same (--api-key-file)", "--admin-api-key"),
    ("set it in the request: strict of a tool", "--tool-strict-level"),
    (
        "not needed: the model's config.json is read as it is (--hf-overrides changes its keys)",
        "--config-format --model-config-parser --hf-config-path --model-class-overrides",
    ),
    ("set it in the request: skip_special_tokens", "-sp --special"),
    ("not needed: the role of an answer is assistant", "--response-role"),
    ("not yet: penalties count the whole context", "--repeat-last-n"),
    ("not yet: answers have no watermark", "--watermark* --enable-watermark"),
    ("not yet: no model here fills in the middle", "--spm-infill"),
    ("use numactl before the command", "--numa*"),
    (
        "metrics have no labels of your own",
        "--tokenizer-metrics-allowed-custom-labels --tokenizer-metrics-custom-labels-header --extra-metric-labels",
    ),
    (
        "not needed: metrics are at /metrics",
        "--enable-metrics* --metrics --disable-log-stats --*-metrics --*-metrics-* --kv-cache-metrics* "
        "--bucket-* --*-buckets --show-hidden-metrics-* --aggregate-engine-logging --collect-tokens-* "
        "--prompt-tokens-buckets --enable-mfu-metrics --show-time-cost --decode-log-interval "
        "--enable-request-time-stats-logging --enable-server-load-tracking --enable-logging-iteration-details "
        "--perf",
    ),
    (
        "not needed: the kernels are chosen for the device",
        "--*-backend --enable-fused-* --kernel-config --ir-op-priority --enable-flashinfer-* "
        "--disable-flashinfer-* --flashinfer-* --bf16-gemm-backend --monokernel* "
        "--enable-nvidia-megakernel --enable-amd-* --disable-aiter-* "
        "--enable-aiter-* --fp4-gemm-* --fp8-gemm-* --use-fp64-gumbel --enable-tf32-* --enable-fp32-lm-head "
        "--enable-lean-attention --op-offload --mlx-*",
    ),
    (
        "jaxinfer has nothing that it would change; drop it",
        "--additional-config --aux-output-config --cohere-* --diffusion-config --enable-cumem-allocator "
        "--enable-flash-late-* --enable-shm-* --engram-config --fail-on-environ-* --fingerprint-* "
        "--kv-sharing-* --model-impl --prefill-schedule-interval --scheduler-reserve-* --completion-template "
        "--debug-tensor-* --disable-attn-tp-* --disable-outlines-* --dllm-* --enable-hisparse "
        "--enable-linker-* --enable-mis --enable-page-major-* --enable-scattered-* --enable-unified-* "
        "--enforce-disable-* --gated-launch-port --hierarchical-* --hisparse-config --kv-canary* "
        "--min-free-slots-* --msprobe-* --num-reserved-* --prefill-decode-* --prefill-only-* --qsa-* "
        "--retraction-policy --schedule-conservativeness --unified-cache-* --weight-version "
        "--completion-bash --license --modelfile --parameters --escape -e --props --gc-* --crash-dump-folder --no-host",
    ),
)


_EXACT = {flag: reason for reason, flags in FOREIGN for flag in flags.split() if not set("*?") & set(flag)}
_PATTERNS = [(flag, reason) for reason, flags in FOREIGN for flag in flags.split() if flag not in _EXACT]


IN_REQUEST = "set it in the request: "
BY_REQUEST = "not yet: only a request to `jaxinfer serve` sets it: "
_OF_REQUESTS = ("", "serve")  # verbs whose users write requests
ABSENT = ("auto", "none")  # values that ask for nothing else than what there is
FALSE = ("false", "off", "no")
# what the negation of a flag is told where that is neither AS_IT_IS nor the flag's own reason
NEGATIONS = {
    "use --enable-prefix-caching, which is on": "use --no-enable-prefix-caching",
    "use --kv-offloading-bytes": "use --kv-offloading-bytes 0",
    "use --gpu-memory-utilization": "use --num-pages and --max-model-len instead",
    "use --max-stored-responses": "use --max-stored-responses 0",
    "not needed: no request is logged without --log-requests": "use --log-requests",
}
_SWITCH = re.compile(r"--(?:no|enable|disable|use|trust|enforce)-")  # of the others a value may be a word such as off
# reasons that say what jaxinfer does not do: a flag that asks for its absence asks for nothing
_OF_ABSENCE = re.compile(
    r"not yet: |never: |use --|use the variable HF_|send token ids|a context is never|GGUF is not|another sampler|"
    r"presets of models|metrics have no|jaxinfer has nothing"
)


def negation(reason: str) -> str:
    """What to say of the negation of a flag, by what is said of the flag."""
    if reason in NEGATIONS:
        return NEGATIONS[reason]
    return AS_IT_IS if _OF_ABSENCE.match(reason) else reason


def refusal(flag: str, value: str, options: Collection[str], verb: str = "") -> str | None:
    """What a verb says of a flag of others; None for one that none of them has, or that is not about the verb.

    value: what follows the flag.    options: the verb's own; a reason that names another option does not count for it.
    verb: as after `jaxinfer`; other benchmarks' flags are about the verbs of bench.
    """
    name = flag.partition("=")[0]
    if verb.startswith("bench ") and (said := bench_reason(name.replace("_", "-"), verb.removeprefix("bench "))):
        return f"{name}: {said}"
    if name not in options and (own := verb_reason(name, flag.partition("=")[2] or value, verb)):
        return f"{name}: {own}"
    if name == "-p" and "--port" in options and not re.search("[^0-9]", value):  # no prompt
        return f"{name}: use --port"
    answer = reply(flag)
    if answer is None:
        return None
    reason = answer.removeprefix(f"{flag}: ")
    if value.lower() in FALSE and (_SWITCH.match(flag) or not reason.startswith("use --")):
        opposite = reply(f"--no-{flag.removeprefix('--')}") if flag.startswith("--") else None
        reason = opposite.partition(": ")[2] if opposite else negation(reason)
    if reason == "use --device" and value.isdecimal():  # layers on the GPU
        reason += " cuda" if int(value) else " cpu"
    field = reason.removeprefix(IN_REQUEST)
    if field != reason and (own := flag_of(field)) in options:
        return f"{flag}: use {own}"
    if field != reason and verb not in _OF_REQUESTS:
        reason = f"set it in the row: {field}" if verb == "batch" else f"{BY_REQUEST}{field}"
    is_for_engines = "--max-model-len" in options
    named = re.match(r"use (--[\w-]+)", reason)
    if is_for_engines or (flag.startswith("--") and (named is None or named[1] in options)):
        return f"{flag}: {reason}"
    return None


def changes_nothing(refusal: str, value: str, verb: str = "") -> bool:
    """Whether a flag that is refused so asks, with this value, for nothing else than what there is.

    verb: as `refusal` takes it; AS_THERE_IS is about the verbs of bench alone.
    """
    flag, _, reason = refusal.partition(": ")
    is_there = verb.startswith("bench ") and value in AS_THERE_IS.get(flag.replace("_", "-"), ())
    if reason == AS_IT_IS or (is_there and not reason.startswith("use ")):
        return True
    return reason.startswith("not yet: ") and value in ABSENT or (reason in (ONE_GPU, REPLICAS) and value == "1")


def flags_of_others(options: Collection[str], verb: str = "") -> list[str]:
    """The flags of others that a verb with these options has an answer for."""
    flags = [*(bench_flags() if verb.startswith("bench ") else ()), *_EXACT]
    return [flag for flag in flags if flag.startswith("--") and refusal(flag, "", options, verb)]


def reply(flag: str) -> str | None:
    """What to say of a flag of others; None for one that none of the three has.

    Spellings that those programs take count too: underscores, --no-FLAG, and --config.key of a JSON flag.
    """
    name = flag.partition("=")[0].replace("_", "-")
    name = name.partition(".")[0] if name.startswith("-") and not re.match(r"--[\w-]*-\d", name) else name
    if name in _EXACT:
        return f"{flag}: {_EXACT[name]}"
    positive = f"--{name.removeprefix('--no-')}"
    if name.startswith("--no-") and (reason := _EXACT.get(positive) or _of_pattern(positive)):
        return f"{flag}: {negation(reason)}"
    found = _of_pattern(name)
    return f"{flag}: {found}" if found else None


def _of_pattern(name: str) -> str | None:
    return next((reason for pattern, reason in _PATTERNS if fnmatchcase(name, pattern)), None)
