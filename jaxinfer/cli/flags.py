"""How each setting of EngineConfig appears on the command line: vLLM's names, grouped as --help shows them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Flag:
    """How one setting appears on the command line.

    also: spellings that people bring from elsewhere.    in_short_help: --help shows it, not --help-all alone.
    """

    group: str
    help: str
    also: tuple[str, ...] = ()
    in_short_help: bool = False


FLAGS: dict[str, Flag] = {
    "model": Flag(
        "Model", "A folder, a Hugging Face id, or demo; the same as MODEL.", ("-m", "--model-path"), in_short_help=True
    ),
    "revision": Flag("Model", "Branch, tag or commit of a Hugging Face id."),
    "tokenizer": Flag("Model", "Folder with another tokenizer.json and chat template."),
    "served_model_name": Flag("Model", "Name in the API instead of MODEL; give it again for more names."),
    "hf_overrides": Flag("Model", "Values for config.json's keys, as in '{\"rope_theta\": 1e6}'; null takes one out."),
    "dtype": Flag("Model", "Data type of weights and KV pages; auto is the checkpoint's."),
    "quantization": Flag(
        "Model", "int8 or int4: round the weights to that as they are loaded (slow on a GPU); auto: leave them."
    ),
    "load_format": Flag("Model", "dummy: random weights from config.json alone."),
    "generation_config": Flag("Model", "auto: unset sampling fields take generation_config.json's values."),
    "tool_call_parser": Flag("Model", "How the model writes tool calls; auto: as its chat template says."),
    "reasoning_parser": Flag("Model", "How the model marks its thoughts; auto: as its chat template says."),
    "chat_template": Flag("Model", "File with another chat template, in Jinja."),
    "default_chat_template_kwargs": Flag("Model", "Template variables that requests leave unset, as JSON."),
    "download_dir": Flag("Model", "Where downloads go instead of Hugging Face's cache."),
    "device": Flag(
        "Device and memory", "auto: the first NVIDIA GPU if there is a driver, otherwise the CPU.", in_short_help=True
    ),
    "gpu_memory_utilization": Flag(
        "Device and memory", "Share of the free device memory to use.", ("--mem-fraction-static",), in_short_help=True
    ),
    "kv_cache_memory_bytes": Flag("Device and memory", "Bytes of the KV pages alone, as in 2G; overrides the share."),
    "kv_offloading_bytes": Flag(
        "Device and memory", "Host memory for sessions' KV pages that the pool has no room for, as in 8G; 0: none."
    ),
    "page_size": Flag("Device and memory", "Tokens per KV page.", ("--block-size",)),
    "num_pages": Flag("Device and memory", "KV pages, instead of as many as fit."),
    "compile_cache_dir": Flag("Device and memory", "Where compiled steps are kept; '' keeps none."),
    "max_model_len": Flag(
        "Scheduling",
        "Tokens of prompt and answer together, as in 32K; auto: what fits.",
        ("--context-length",),
        in_short_help=True,
    ),
    "max_num_seqs": Flag("Scheduling", "Sequences computed together.", in_short_help=True),
    "max_num_batched_tokens": Flag("Scheduling", "Tokens per step."),
    "max_num_queued_seqs": Flag("Scheduling", "Sequences that may wait before requests are refused with 429."),
    "max_session_pages": Flag("Scheduling", "KV pages that idle sessions may keep; auto: half of them."),
    "max_logprobs": Flag("Scheduling", "Most likely tokens that a request may ask for at each position."),
    "enable_prefix_caching": Flag("Scheduling", "Reuse the pages of shared beginnings."),
    "enable_chunked_prefill": Flag("Scheduling", "Compute long prompts in pieces, between other sequences' tokens."),
    "scheduling": Flag("Scheduling", "static: start sequences only when none runs; for comparison."),
    "kv_layout": Flag("Scheduling", "contiguous: reserve max_model_len for each sequence; for comparison."),
    "attention_backend": Flag(
        "Device and memory", "mosaic: our kernels for Hopper, or fail; auto: ours where they run and are not slower."
    ),
    "cuda_graphs": Flag("Device and memory", "Launch a GPU step as one graph; off, kernel by kernel, for comparison."),
    "enable_fast_forward": Flag(
        "Scheduling", "Tokens that a grammar forces take no steps of their own; off, for comparison."
    ),
    "run_ahead": Flag("Scheduling", "Steps in flight beyond the one being read, 0 or 1."),
    "seed": Flag(
        "Scheduling", "Seed of random weights, and of answers without a seed of their own (run, chat, batch)."
    ),
}
