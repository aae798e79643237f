"""llama.cpp's side of cpu_beside.py, run by a Python that has llama_cpp and gguf and nothing of ours.

python cpu_llama.py BF16|Q8_0|Q4_0 FOLDER    FOLDER keeps the files, which llama.cpp quantizes as it does everybody's
"""

import ctypes
import sys
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

LAYERS, WIDTH, MLP, HEADS, KV_HEADS, HEAD, VOCAB = 28, 1024, 3072, 16, 8, 128, 151936  # Qwen3-0.6B
PROMPTS, ANSWERS, ANSWER, BEFORE = (128, 512), (1, 4, 8), 16, 64  # as in cpu_beside.py


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
        how = llama_cpp.llama_model_default_params()
        # llama-cpp-python 0.3.36 ends in a segmentation fault where it lays quantized weights out for AMX
        how.use_extra_bufts = path.stem == "BF16"
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), how)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 1024, 512, 512, max(ANSWERS)
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = 2
        self._context = llama_cpp.llama_init_from_model(self._model, params)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def seconds(self, rows: list[list[int]], start: int = 0) -> float:
        """To compute these tokens of each sequence, from a position on."""
        batch = llama_cpp.llama_batch_init(sum(map(len, rows)), 0, 1)
        for sequence, tokens in enumerate(rows):
            for place, token in enumerate(tokens, start):
                i = batch.n_tokens
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, place, 1, sequence
                batch.logits[i] = place == start + len(tokens) - 1
                batch.n_tokens += 1
        began = time.perf_counter()
        failed = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_synchronize(self._context)
        took = time.perf_counter() - began
        llama_cpp.llama_batch_free(batch)
        assert not failed, failed
        return took


def file_of(kind: str, folder: Path) -> Path:
    plain, path = folder / "BF16.gguf", folder / f"{kind}.gguf"
    if not plain.exists():
        write_model(plain)
    if not path.exists():
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        assert not llama_cpp.llama_model_quantize(str(plain).encode(), str(path).encode(), params)
    return path


def main(kind: str, folder: str) -> None:
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(say_nothing, ctypes.c_void_p(0))
    context = Context(file_of(kind, Path(folder)))
    print("ready", flush=True)
    for _ in sys.stdin:
        rates = []
        for count in PROMPTS:
            context.clear()
            rates.append(count / context.seconds([[(7 * i) % 1000 for i in range(count)]]))
        for rows in ANSWERS:
            context.clear()
            context.seconds([[(7 * i + row) % 1000 for i in range(BEFORE)] for row in range(rows)])
            steps = range(BEFORE, BEFORE + ANSWER)
            took = sum(context.seconds([[place + row] for row in range(rows)], place) for place in steps)
            rates.append(rows * ANSWER / took)
        print(*(f"{rate:.2f}" for rate in rates), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
