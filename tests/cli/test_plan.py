"""`jaxinfer plan`: from config.json alone, for a device that need not be here."""

import io
import json
import re
from pathlib import Path

import pytest

from jaxinfer.cli import cards, main
from jaxinfer.config import SETTINGS
from jaxinfer.models.known import KNOWN, known_config, nearest, unsupported
from jaxinfer.models.registry import family_for
from jaxinfer.runtime import nvidia

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path) -> str:
    """A checkpoint with nothing in it but config.json."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    return str(tmp_path)


def rows(outcome) -> dict[str, str]:
    return dict(line.strip().split("  ", 1) for line in outcome.out.splitlines()[1:])


def test_a_model_is_planned_for_a_gpu_that_is_not_here(cli, folder):
    outcome = cli("plan", folder, "--for", "h200")
    found = {name: value.strip() for name, value in rows(outcome).items()}
    assert outcome.code == 0
    assert found["device"] == "NVIDIA H200, 140.0 GiB free, 4,800 GB/s, 989 TFLOP/s in bfloat16"
    assert found["architecture"] == "Qwen3ForCausalLM, 8.19 billion parameters, 36 layers, 40,960 positions"
    assert found["weights"] == "15.26 GiB"
    assert found["concurrency"].startswith("Maximum concurrency for 40,960 tokens per request: ")
    assert found["decode"].startswith("at most 314.0 tokens/s alone")  # 4.8 TB/s over 15.1 GB of weights and 0.15 of KV


def test_a_plan_says_which_cache_of_the_checkpoint_s_is_not_followed(cli, folder):
    said = {"quant_algo": None, "kv_cache_quant_algo": "FP8"}
    (Path(folder) / "hf_quant_config.json").write_text(json.dumps({"quantization": said}))
    row = rows(cli("plan", folder, "--for", "h200"))["not followed"].strip()
    assert row == "kv_cache_quant_algo 'FP8' of hf_quant_config.json; keys and values are kept in bfloat16"


def test_the_backends_are_those_of_the_device_that_is_planned_for(cli, folder):
    backends = [rows(cli("plan", folder, "--for", name))["decode attention"].strip() for name in ("h200", "a100")]
    assert backends == ["mosaic", "xla"]
    asked = ("--for", "h200", "--attention-backend", "xla")
    assert rows(cli("plan", folder, *asked))["decode attention"].strip() == "xla"


def test_a_backend_that_the_device_cannot_run_is_refused(cli, folder):
    outcome = cli("plan", folder, "--for", "a100", "--attention-backend", "mosaic")
    assert outcome.code == 2
    assert "got NVIDIA A100 (8.0); set --attention-backend to auto" in outcome.last_line


def test_settings_change_the_plan_and_are_named(cli, folder):
    found = rows(cli("plan", folder, "--for", "h200", "--max-model-len", "8K", "--dtype", "float32"))
    assert found["max_model_len"].strip() in {"8192 (--max-model-len)", "8,192 tokens"}
    assert found["weights"].strip() == "30.51 GiB"


def test_a_model_that_does_not_fit_ends_in_a_value_that_does(cli, folder):
    outcome = cli("plan", folder, "--for", "l4", "--max-model-len", "32K")
    assert outcome.code == 4, "as a card that holds no context at all"
    assert "lower --max-model-len to 26000" in outcome.last_line
    assert cli("plan", folder, "--for", "l4", "--max-model-len", "23000").code == 0


@pytest.mark.parametrize(
    ("model", "card", "missing", "larger"),
    [
        ("Qwen/Qwen3-14B", "3090", "7.76 GiB are missing", "l40s, h100, a100"),
        ("Qwen/Qwen3-8B", "4060ti", "2.66 GiB are missing", "l4, a10, 4090"),
    ],
)
def test_a_model_that_does_not_fit_has_a_plan_that_says_what_is_missing(cli, model, card, missing, larger):
    outcome = cli("plan", model, "--for", card)
    found = rows(outcome)
    assert outcome.code == 4
    assert {"device", "architecture", "weights", "temporaries", "free before", "fits"} <= found.keys()
    assert re.fullmatch(r"\S+ \S+, 90% of \S+ GiB \(gpu_memory_utilization\)", found["free before"].strip())
    assert found["fits"].strip() == "no", "the last line says why"
    assert missing in outcome.last_line
    slowly = f"set --quantization to int8 (slow on a GPU), or take {model}-FP8 (slow on this GPU)"
    card = f"take a card that holds it (--for {larger})"
    assert outcome.last_line.endswith(f"; {slowly}, or {card}, or choose a smaller model")


@pytest.mark.parametrize(
    ("asked", "cure"),
    [
        (
            "Qwen/Qwen3-8B --for cpu --memory 17G --max-num-batched-tokens 32K",
            "lower --max-num-batched-tokens to 4096, or raise --memory to 26G",
        ),
        (
            "Qwen/Qwen3-0.6B --for cpu --memory 20G --max-num-seqs 4096",
            "lower --max-num-seqs to 2048, or raise --memory",
        ),
        ("demo --for cpu --memory 20G --max-num-batched-tokens 64M", "lower --max-num-batched-tokens to 524288"),
        ("Qwen/Qwen3-0.6B --for h200 --gpu-memory-utilization 0.01", "raise --gpu-memory-utilization to 0.9"),
        (
            "Qwen/Qwen3-8B --for 4090 --gpu-memory-utilization 0.5",
            "raise --gpu-memory-utilization to 0.9, or take a card that holds it (--for l40s, h100, a100)",
        ),
        ("Qwen/Qwen3-8B --for 4090 --max-num-seqs 1000", "lower --max-num-seqs to 512, or take a card"),
        ("Qwen/Qwen3-0.6B --for 4090 --max-num-batched-tokens 1M", "lower --max-num-batched-tokens to 131072, or take"),
    ],
)
def test_a_setting_that_takes_the_memory_is_the_first_cure(cli, asked, cure):
    outcome = cli("plan", *asked.split())
    assert (outcome.code, rows(outcome)["fits"].strip()) == (4, "no")
    assert outcome.last_line.partition("; ")[2].startswith(cure), outcome.last_line
    assert "choose" not in outcome.last_line, "the model is not too large"
    missing = float(re.findall(r"([\d.]+) GiB are missing", outcome.last_line)[0])
    words = [rows(outcome).get(name, "0 GiB").split() for name in ("weights", "pages", "temporaries", "reserve")]
    units = {"GiB": 1, "MiB": 2**-10, "bytes": 2**-30}
    needed = sum(float(number.replace(",", "")) * units[unit.strip(",")] for number, unit, *_ in words)
    assert needed == pytest.approx(float(rows(outcome)["free before"].split()[0]) + missing, abs=0.03)


def test_a_start_that_cannot_fit_is_refused_before_anything_is_loaded(cli):
    outcome = cli("run", "demo", "hi", "--device", "cpu", "--max-num-batched-tokens", "64M")
    assert outcome.code == 4
    assert "are missing; lower --max-num-batched-tokens to " in outcome.last_line


def test_a_context_that_does_not_fit_names_a_shorter_one_and_a_card(cli, folder):
    outcome = cli("plan", folder, "--for", "3090", "--max-model-len", "40000")
    assert (outcome.code, rows(outcome)["fits"].strip()) == (4, "no")
    assert "the pages must hold one sequence of 40,000 tokens" in outcome.last_line
    assert "lower --max-model-len to 32000" in outcome.last_line
    assert outcome.last_line.endswith("or take a card that holds it (--for 5090, l40s, h100)")


def test_a_model_of_no_card_says_so_and_a_wrong_setting_has_no_plan(cli):
    outcome = cli("plan", "Qwen/Qwen2.5-72B", "--hf-overrides", '{"num_hidden_layers": 400}', "--for", "l4")
    assert outcome.last_line.endswith("; choose a smaller model (no card of --for holds it alone)")
    wrong = cli("plan", "Qwen/Qwen3-8B", "--for", "h100", "--max-model-len", "41000")
    assert (wrong.code, wrong.out) == (2, "")


def test_a_plan_says_that_the_model_fits_and_with_how_much_context(cli, folder):
    assert rows(cli("plan", folder, "--for", "h200"))["fits"].strip() == "yes, with its whole context"
    assert rows(cli("plan", folder, "--for", "3090"))["fits"].strip() == "yes, with 30,656 of its 40,960 positions"


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("qwen/QWEN3-8b", 40960),
        ("Qwen/Qwen3-8B-Base", 32768),
        ("Qwen/Qwen3-4B-Instruct-2507", 262144),
        ("Qwen/Qwen3-4B-Thinking-2507", 262144),
        ("Qwen/Qwen3-Embedding-0.6B", 32768),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", 131072),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8192),
        ("meta-llama/llama-3.1-8b-instruct", 131072),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 32768),
        ("Qwen/Qwen2.5-7B", 131072),
        ("Qwen/Qwen2.5-7B-Instruct", 32768),
        ("Qwen/QwQ-32B", 40960),
    ],
)
def test_published_names_are_known_whatever_their_case(name, positions):
    facts = known_config(name)
    assert facts is not None and family_for(facts).config_from_hf(facts).max_position == positions


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Qwen3-30B-A3B", "models of experts are not supported"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "models of experts are not supported"),
        ("deepseek-ai/DeepSeek-R1", "models of experts are not supported"),
        ("deepseek-ai/DeepSeek-V3.1", "models of experts are not supported"),
        ("openai/gpt-oss-20b", "models of experts are not supported"),
        ("someone/Qwen3-8B-W4A8", "of quantized weights FP8, FP4, w8a8, AWQ and GPTQ of 4 bits are read"),
        ("Qwen/Qwen2.5-7B-GPTQ-Int8", "of quantized weights FP8, FP4, w8a8, AWQ and GPTQ of 4 bits are read"),
        ("Qwen/Qwen3-8B-GGUF", "GGUF is not supported"),
        ("x.gguf", "GGUF is not supported"),
    ],
)
def test_a_name_that_cannot_run_here_is_told_why_and_not_that_the_hub_is_away(cli, monkeypatch, tmp_path, name, reason):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    outcome = cli("plan", name, "--download-dir", str(tmp_path), "--for", "h100")
    assert (outcome.code, outcome.last_line.partition("; ")[0]) == (3, f"error: cannot run {name}: {reason}")


def test_no_known_name_and_no_near_one_is_called_unsupported():
    assert [name for name in KNOWN if unsupported(name)] == []
    assert nearest("qwen3-8b") == "Qwen/Qwen3-8B" and nearest("nosuch") is None


def test_an_unknown_name_offline_is_told_what_ships(cli, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    outcome = cli("plan", "qwen3-8b", "--download-dir", str(tmp_path), "--for", "h100")
    assert outcome.last_line.startswith(
        "error: cannot find qwen3-8b, did you mean 'Qwen/Qwen3-8B'? If not, see `jaxinfer plan --list`, "
        "unset HF_HUB_OFFLINE to download, or name the folder of a copy: not in "
    )
    assert cli("plan", "--list").out.splitlines() == sorted(KNOWN)


def test_memory_can_be_set(cli, folder):
    assert "NVIDIA L4, 37.3 GiB free" in cli("plan", folder, "--for", "l4", "--memory", "40g").out
    assert (
        "--memory must be bytes, got 'much'; write it as in 80G"
        in cli("plan", folder, "--for", "l4", "--memory", "much").err
    )
    outcome = cli("plan", folder, "--for", "l4", "--memory", "8")
    assert outcome.last_line.endswith(
        "--memory must be at least 1M of bytes, as in 80G, got '8'; add a unit: --memory 8G"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h2000", "the nearest is 'h200'; for another card name one like it and its memory: --for h200"),
        ("4080", "the nearest is '4090'; for another card name one like it and its memory: --for 4090"),
        (
            "banana",
            "`jaxinfer plan --help` lists the cards; for another card name one like it and its memory: --for 4090",
        ),
    ],
)
def test_an_unknown_card_is_named_with_the_nearest_and_a_way_to_plan_for_it(cli, folder, name, said):
    outcome = cli("plan", folder, "--for", name)
    assert outcome.last_line == f"error: unknown --for {name!r}, {said} --memory 16G"
    assert cli("plan", folder, *said.partition("memory: ")[2].split(), "--memory", "48G").code == 0


def test_a_misspelt_cpu_is_no_card(cli, folder):
    assert cli("plan", folder, "--for", "cpuu").last_line == "error: unknown --for 'cpuu', did you mean 'cpu'?"


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("hf_overrides", "dtype")])
@pytest.mark.parametrize("value", [7, "x page_size y", {"num_pages": 1}])
def test_a_fault_of_a_file_names_its_key_as_it_stands_there(cli, folder, name, value):
    """A key that has the name of a setting too, and the cure that is shown takes it out."""
    file = Path(folder, "config.json")
    file.write_text(json.dumps(QWEN3_8B | {name: value}))
    outcome = cli("plan", folder, "--for", "h100")
    if outcome.code == 0:  # a key that says nothing of what is computed
        return
    assert f"\n  - {name} is not a key this architecture knows, got " in outcome.err
    assert "page_size" in outcome.err or "page_size" not in str(value)
    assert """--hf-overrides '{"KEY": VALUE}', null for a key""" in outcome.last_line
    assert cli("plan", folder, "--for", "h100", "--hf-overrides", json.dumps({name: None})).code == 0
    file.write_text(json.dumps(QWEN3_8B))
    outcome = cli("plan", folder, "--for", "h100", "--hf-overrides", json.dumps({name: value}))
    assert f"\n  - {name} (--hf-overrides) is not a key this architecture knows, got " in outcome.err


def test_without_a_gpu_this_machine_is_planned_for(cli, folder, monkeypatch):
    monkeypatch.setattr(nvidia, "list_gpus", list)
    monkeypatch.setattr(cards, "read_speed", lambda: 20e9)
    outcome = cli("plan", folder, "--dtype", "float16", "--memory", "64G")
    assert " CPUs, 64.0 GiB free, 20 GB/s" in outcome.out
    assert "decode" in rows(outcome)


def test_this_machine_s_gpu_is_planned_for_with_what_is_free_on_it(cli, folder, monkeypatch):
    gpus = nvidia.parse_gpus("0, GPU-1, NVIDIA H200, 580.1, 143771, 71680\n1, GPU-2, NVIDIA X9, 580.1, 99999, 99998\n")
    monkeypatch.setattr(nvidia, "list_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "NVIDIA H200, 70.0 GiB free, 4,800 GB/s" in cli("plan", folder).out
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    outcome = cli("plan", folder)
    assert "NVIDIA X9, 97.7 GiB free, of unknown speed" in outcome.out
    assert "unknown device; one of --for b200, h200" in outcome.out


def test_the_speed_of_memory_is_measured():
    assert 1e8 < cards.read_speed(2**22) < 1e13


def test_an_untied_embedding_is_looked_up_and_not_read_through(cli, folder, tmp_path):
    def alone() -> str:
        return rows(cli("plan", folder, "--for", "h200"))["decode"].split(" alone")[0]

    untied = alone()
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B | {"tie_word_embeddings": True}))
    assert alone() == untied


def test_the_published_families_are_planned_without_the_hub():
    """Every shape that we ship is one that a family reads, and has the size of its name."""
    for name, facts in KNOWN.items():
        model = family_for(facts).config_from_hf(facts)
        stated = float(re.findall(r"([\d.]+)B", name)[-1]) * 1e9
        untied = model.vocab_size * model.hidden_size
        assert 0.85 * stated < model.num_params < 1.15 * stated + untied, (name, model.num_params)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B",
        "Qwen/Qwen2.5-7B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        "meta-llama/Llama-3.2-1B",
    ],
)
def test_a_known_model_needs_no_hub(cli, name, monkeypatch):
    monkeypatch.setattr("jaxinfer.checkpoint.resolve.resolve", None)
    outcome = cli("plan", name, "--for", "h200")
    assert outcome.code == 0
    assert rows(outcome)["config.json"].strip().startswith("its facts as jaxinfer ships them")


def test_shipped_facts_make_the_plan_that_the_checkpoint_s_own_config_makes(cli, folder):
    shipped, own = (rows(cli("plan", name, "--for", "h200")) for name in ("Qwen/Qwen3-8B", folder))
    apart = ("config.json", "model")
    assert {k: v.strip() for k, v in shipped.items() if k not in apart} == {
        k: v.strip() for k, v in own.items() if k not in apart
    }


WRITTEN = ["3090", "rtx4090", "RTX-5090", "4060ti", "a10", "l4", "l40s", "rtxpro6000", "RTX PRO 6000"]
WRITTEN += ["4060 Ti 16 GB", "4060ti-16gb", "H100-80GB", "nvidia geforce rtx 4090 24gb", "h200-141GB", "l40s_48gb"]


@pytest.mark.parametrize("card", WRITTEN)
def test_consumer_cards_are_known(cli, card):
    outcome = cli("plan", "Qwen/Qwen3-0.6B", "--for", card, "--max-model-len", "8K")
    assert outcome.code == 0
    assert "TFLOP/s in bfloat16" in outcome.out and "decode" in rows(outcome)


@pytest.mark.parametrize(
    ("key", "multiprocessors", "boost_hz"),
    [
        *(("l40s", 142, 2.49e9), ("l4", 58, 2.04e9), ("a10", 72, 1.695e9), ("rtxpro6000", 188, 2.617e9)),
        *(("5090", 170, 2.407e9), ("4090", 128, 2.52e9), ("4060ti", 34, 2.535e9), ("3090", 82, 1.695e9)),
    ],
)
def test_a_card_s_peak_is_what_its_multiprocessors_do(key, multiprocessors, boost_hz):
    card = cards.GPUS[key]
    full = multiprocessors * 512 * 2 * boost_hz
    assert card.flops == pytest.approx(full / 2 if "GeForce" in card.device_kind else full, rel=0.005)


def test_base_models_of_qwen_2_5_have_longer_contexts_than_their_instruct_versions():
    positions = {
        size: [known_config(f"Qwen/Qwen2.5-{size}{kind}")["max_position_embeddings"] for kind in ("", "-Instruct")]
        for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")
    }
    assert positions == {size: [32768 if size in ("0.5B", "3B") else 131072, 32768] for size in positions}


def test_a_card_of_another_memory_is_not_taken_for_the_one_that_is_known(cli):
    outcome = cli("plan", "Qwen/Qwen3-0.6B", "--for", "a100-40gb")
    assert outcome.last_line == "error: --for a100 has 79 GiB free, got 'a100-40gb'; say --for a100 --memory 40G"
    assert "--for h100 has 79 GiB free" in cli("plan", "Qwen/Qwen3-0.6B", "--for", "H100 0GB").last_line


def test_a_card_that_a_model_nearly_fills_has_its_memory_for_pages(cli):
    """8B in bfloat16 on 24 GB: a step of 8,192 tokens and 256 sequences left pages for 6,592 tokens in all."""
    found = rows(cli("plan", "Qwen/Qwen3-8B", "--for", "4090"))
    assert found["max_num_seqs"].strip() == "64 together, 1,024 tokens a step"
    assert found["max_model_len"].strip() == "30,656 tokens"
    assert rows(cli("plan", "Qwen/Qwen3-8B", "--for", "h100"))["max_num_seqs"].strip() == (
        "256 together, 8,192 tokens a step"
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA GeForce RTX 4060 Ti", "4060ti"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A10", "a10"),
    ],
)
def test_a_card_is_known_by_the_name_that_the_driver_gives_it(name, key):
    gpu = nvidia.parse_gpus(f"0, GPU-1, {name}, 580.1, 99999, 99998\n")[0]
    assert cards.known_gpu(gpu).bytes_per_s == cards.GPUS[key].bytes_per_s


def test_nothing_that_rounds_to_nothing_is_printed(cli):
    text = cli("plan", "demo", "--for", "h200").out
    assert not re.search(r"\b0\.0 (ms|MiB)|\d{4,}\.\d\dx", text), text
    assert "as max_num_seqs allows" in text and "bound by the host" in text


def test_the_list_says_of_each_model_whether_it_fits_a_card_and_with_how_much_context(cli):
    lines = cli("plan", "--list", "--for", "4090").out.splitlines()
    assert lines[0].startswith("NVIDIA GeForce RTX 4090, 23.0 GiB free") and len(lines) == len(KNOWN) + 2
    assert max(map(len, lines)) <= 100
    found = {name: fits for name, *_, fits in (re.split(r"  +", line) for line in lines[2:])}
    assert found["Qwen/Qwen3-4B"] == "yes, with its whole context"
    assert found["Qwen/Qwen3-8B"] == "yes, with 30,656 of its 40,960 positions"
    assert found["Qwen/Qwen3-14B"] == "no: 7.76 GiB are missing"
    assert found["Qwen/Qwen3-8B-FP8"] == "yes, with its whole context"
    smaller = cli("plan", "--list", "--for", "4090", "--memory", "12G", "--max-model-len", "8K").out
    assert re.search(r"Qwen/Qwen3-4B +7.49 GiB +yes, with 8,192 of its 40,960 positions", smaller)
    assert re.search(r"Qwen/Qwen3-8B +15.26 GiB +no: ", smaller)


@pytest.mark.parametrize(
    ("asked", "model", "said"),
    [
        ("--for h200 --gpu-memory-utilization 0.05", "Qwen/Qwen3-8B", "no: raise --gpu-memory-utilization to 0.9"),
        ("--for h200 --gpu-memory-utilization 0.05", "Qwen/Qwen2.5-72B", "no: 129.53 GiB are missing"),
        ("--for cpu --memory 20G --max-num-seqs 4096", "Qwen/Qwen3-0.6B", "no: lower --max-num-seqs to 2048"),
        ("--for 4090 --num-pages 9999", "Qwen/Qwen3-8B", "no: lower --num-pages to 510"),
        ("--for 4090 --kv-cache-memory-bytes 90G", "Qwen/Qwen3-8B", "no: lower --kv-cache-memory-bytes to 4"),
        ("--for 4090 --max-model-len 40000", "Qwen/Qwen3-8B", "no: lower --max-model-len to 32000"),
    ],
)
def test_the_list_names_the_setting_that_takes_the_memory(cli, asked, model, said):
    lines = cli("plan", "--list", *asked.split()).out.splitlines()
    (line,) = (line for line in lines if line.startswith(f"{model} "))
    assert re.split(r"  +", line)[2].startswith(said)


def test_no_option_of_plan_is_ignored_beside_another(cli, monkeypatch):
    monkeypatch.setattr(nvidia, "list_gpus", list)
    lines = cli("plan", "--list", "--for", "h100", "--max-num-batched-tokens", "100", "--max-num-seqs", "300").out
    assert "no: --max-num-batched-tokens must be at least --max-num-seqs (300)" in lines
    refused = cli("plan", "demo", "--list")
    assert (refused.code, refused.last_line) == (
        2,
        "error: --list is of every model, got 'demo'; leave one of the two out",
    )
    for name, device in (("4090", "cpu"), ("cpu", "cuda")):
        refused = cli("plan", "demo", "--for", name, "--device", device)
        assert (refused.code, f"got --for {name} and --device {device}; drop one" in refused.last_line) == (2, True)
    refused = cli("plan", "demo", "--device", "cuda")
    assert (refused.code, refused.last_line.endswith("this machine shows none; name a card with --for")) == (4, True)
    free = rows(cli("plan", "demo", "--for", "cpu", "--memory", "8G", "--gpu-memory-utilization", "0.5"))["free before"]
    assert free.strip() == "8.00 GiB, all of it: gpu_memory_utilization is of GPUs"
    monkeypatch.setenv("JAXINFER_DEVICE", "cpu")
    assert cli("plan", "demo", "--for", "4090").code == 0, "a variable is of this machine"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed_at_a_terminal(monkeypatch, *args: str) -> list[str]:
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    with pytest.raises(SystemExit):
        main(list(args))
    return screen.getvalue().splitlines()


@pytest.mark.parametrize(("name", "card"), [("Qwen/Qwen3-8B", "4090"), ("demo", "h100"), ("demo", "rtxpro6000")])
def test_a_plan_begins_with_its_answer_and_fits_a_terminal(monkeypatch, name, card):
    monkeypatch.setenv("COLUMNS", "180")
    brief, whole = (printed_at_a_terminal(monkeypatch, "plan", name, "--for", card, *more) for more in ((), ("-v",)))
    assert max(map(len, brief)) <= 100 and max(map(len, whole)) <= 100
    assert brief[1].split()[0] == "fits" and not any("xla" in line for line in brief)
    assert len(whole) > len(brief)


def test_a_model_that_nobody_named_is_called_the_demo_with_the_way_to_others(cli):
    lines = cli("plan", "--for", "4090", "--memory", "20G").out.splitlines()
    assert lines[0] == "demo, the bundled demo model, no useful assistant (no MODEL was named)"
    assert lines[-1] == "`jaxinfer plan --list --for 4090 --memory 20G` shows which models fit"
    assert "--list" not in cli("plan", "demo", "--for", "4090").out
