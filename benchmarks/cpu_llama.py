"""llama.cpp's side of cpu_beside.py, run by a Python that has llama_cpp and gguf and nothing of ours."""

import ctypes
import sys
import tempfile
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

LAYERS, WIDTH, MLP, HEADS, KV_HEADS, HEAD, VOCAB = 28, 1024, 3072, 16, 8, 128, 151936  # Qwen3-0.6B
PROMPTS, ANSWER, BEFORE = (128, 512), 16, 64  # as in cpu_beside.py


def write_model(path: Path) -> None:
    kind = gguf.GGMLQuantizationType.BF16
    out = gguf.GGUFWriter(path, "qwen3")
    out.add_context_length(4096)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(MLP)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(1e6)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([f"t{i}" for i in range(VOCAB)])
    out.add_token_types([1] * VOCAB)
    out.add_token_merges(["t 1"])
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    values = np.random.default_rng(0).standard_normal(4_000_000).astype(np.float32)

    def matrix(name: str, rows: int, columns: int) -> None:
        array = np.resize(values, rows * columns).reshape(rows, columns) / np.float32(columns**0.5)
        out.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)

    matrix("token_embd.weight", VOCAB, WIDTH)
    out.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for i in range(LAYERS):
        for norm, size in (("attn_norm", WIDTH), ("ffn_norm", WIDTH), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            out.add_tensor(f"blk.{i}.{norm}.weight", np.ones(size, np.float32))
        for name, rows, columns in (
            ("attn_q", HEADS * HEAD, WIDTH),
            ("attn_k", KV_HEADS * HEAD, WIDTH),
            ("attn_v", KV_HEADS * HEAD, WIDTH),
            ("attn_output", WIDTH, HEADS * HEAD),
            ("ffn_gate", MLP, WIDTH),
            ("ffn_up", MLP, WIDTH),
            ("ffn_down", WIDTH, MLP),
        ):
            matrix(f"blk.{i}.{name}.weight", rows, columns)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


@llama_cpp.llama_log_callback
def say_nothing(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


class Context:
    def __init__(self, path: Path) -> None:
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(say_nothing, ctypes.c_void_p(0))
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 1024, 512, 512
        params.n_threads = params.n_threads_batch = 2
        self._context = llama_cpp.llama_init_from_model(self._model, params)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def seconds(self, tokens: list[int]) -> float:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        began = time.perf_counter()
        failed = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(array, len(tokens)))
        llama_cpp.llama_synchronize(self._context)
        assert not failed, failed
        return time.perf_counter() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_model(path := Path(folder) / "model.gguf")
        context = Context(path)
        print("ready", flush=True)
        for _ in sys.stdin:
            rates = []
            for count in PROMPTS:
                context.clear()
                rates.append(count / context.seconds([(7 * i) % 1000 for i in range(count)]))
            context.clear()
            context.seconds([(7 * i) % 1000 for i in range(BEFORE)])
            rates.append(ANSWER / sum(context.seconds([i + 5]) for i in range(ANSWER)))
            print(*(f"{rate:.2f}" for rate in rates), flush=True)


if __name__ == "__main__":
    main()
