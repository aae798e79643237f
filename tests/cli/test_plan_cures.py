"""What `jaxinfer plan` tells of a model that does not fit, and that it helps."""

import random
import re

import pytest

from jaxinfer.cli.cards import GPUS, known_gpu, named_target
from jaxinfer.runtime import memory, nvidia

DRIVERS_NAMES = {"h100": "NVIDIA H100 80GB HBM3", "a100": "NVIDIA A100-SXM4-80GB"} | {
    "rtxpro6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "4060ti": "NVIDIA GeForce RTX 4060 Ti",
}


@pytest.mark.parametrize(
    ("asked", "cures"),
    [
        ("Qwen/Qwen3-8B --for 4090 --memory 12G", "raise --memory to 18G;set;take Qwen;leave out --memory;choose"),
        ("Qwen/Qwen2.5-14B --for 4090 --memory 12G", "raise;leave out --memory and take a card (--for l40s;choose"),
        ("demo --for cpu --memory 10M", "raise --memory to 12M;choose a smaller model"),
        ("Qwen/Qwen3-8B --for cpu --memory 12G", "raise;set --quantization to int8;choose"),
        ("Qwen/Qwen3-14B --for h100 --memory 24G", "raise;set --quantization;take Qwen/Qwen3-14B-FP8;leave out;choose"),
        ("Qwen/Qwen2.5-32B --for 5090 --max-num-batched-tokens 1", "set --quantization;take a card;choose"),
        ("Qwen/Qwen3-8B --for 4090 --max-model-len 40960", "lower --max-model-len to 32000;take a card (--for 5090"),
        (
            "Qwen/Qwen3-8B --for 4090 --max-model-len 40960 --max-num-batched-tokens 64",
            "lower --max-model-len to 32000;take a card",
        ),
        (
            "meta-llama/Meta-Llama-3-70B --for a10 --max-model-len 128K",
            "leave out --max-model-len and take (--for b200)",
        ),
        (
            "Qwen/Qwen2.5-Coder-14B --for 5090 --kv-cache-memory-bytes 1M",
            "set --quantization;leave out --kv-cache-memory-bytes and take",
        ),
        ("Qwen/Qwen2.5-72B --for l4 --dtype float32", "leave out --dtype and take a card (--for b200);choose"),
        (
            "Qwen/Qwen2.5-72B --for l4 --gpu-memory-utilization 0.98 --num-pages 99999",
            "leave out --num-pages and take a card that holds it (--for h200, b200);choose",
        ),
        ("meta-llama/Llama-3.1-8B --for 5090 --memory 6G --num-pages 9000", "raise;leave out --memory and --num-pages"),
        (
            "Qwen/Qwen3-8B --for 4090 --no-enable-chunked-prefill --max-model-len 20000",
            "pass --enable-chunked-prefill;take",
        ),
        (
            "Qwen/Qwen2.5-14B --for l40s --no-enable-chunked-prefill --max-num-seqs 4096 --max-num-batched-tokens 100K",
            "leave out --max-num-batched-tokens and --max-num-seqs;take",
        ),
    ],
)
def test_the_cures_of_a_card_or_a_memory_help_when_they_are_typed(cli, asked, cures):
    """cures: words of each, in order."""
    said = cli("plan", *asked.split()).last_line.rpartition("; ")[2].split(", or ")
    for words, cure in zip(cures.split(";"), said, strict=False):
        assert re.search(".*".join(map(re.escape, words.split())), cure), said
    check_cures(cli, asked)


LARGEST = 'Qwen/Qwen2.5-72B --hf-overrides {"num_hidden_layers":160}'
MANY = (
    *("--max-model-len 32768", "--num-pages 99999", "--max-num-seqs 64", "--page-size 32", "--dtype float32"),
    *("--max-num-batched-tokens 4096", "--gpu-memory-utilization 0.8", "--kv-offloading-bytes 1G"),
)


@pytest.mark.parametrize(
    ("asked", "cure"),
    [
        (LARGEST, "choose a smaller model (no card of --for holds it alone)"),
        (f"{LARGEST} --memory 16G", "choose a smaller model (no card of --for holds it alone)"),
        ("Qwen/Qwen2.5-72B", "leave out --gpu-memory-utilization and --dtype and --num-pages and take a card"),
    ],
)
def test_as_many_plans_are_tried_as_may_help_and_weights_are_counted_once(cli, monkeypatch, asked, cure):
    """Each set of 8 settings on 14 cards was tried, for minutes; one more for each setting tells whether any helps."""
    tried, counted = [], []
    monkeypatch.setattr(memory, "needs_for", lambda *a, f=memory.needs_for, **k: tried.append(a) or f(*a, **k))
    monkeypatch.setattr(memory, "num_bytes", lambda *a, f=memory.num_bytes: counted.append(a) or f(*a))
    assert cure in cli("plan", *asked.split(), "--for", "l4", *" ".join(MANY).split()).last_line
    where_any_helps = 40 * len(GPUS) if asked == "Qwen/Qwen2.5-72B" else 0
    assert len(tried) < 2 * (2 + len(MANY)) * len(GPUS) + where_any_helps
    assert len(counted) < 10, "of the model in each dtype, and rounded"


MODELS = ("demo", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-14B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-14B")
CARDS = ("4060ti", "4090", "l4", "5090", "h100", "cpu --memory 17G", "4090 --memory 17G", "h200 --memory 3G")
SETTINGS = (
    "--max-model-len 40960",
    "--max-model-len 32K",
    "--max-num-batched-tokens 64",
    "--max-num-batched-tokens 128K",
    "--max-num-seqs 1000",
    "--max-num-seqs 40",
    "--no-enable-chunked-prefill",
    "--gpu-memory-utilization 0.5",
    "--num-pages 200",
    "--num-pages 20000",
    "--kv-cache-memory-bytes 3G",
    "--page-size 32",
    "--dtype float32",
)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 24))])
def test_every_cure_of_cards_models_and_settings_helps_when_it_is_typed(cli, seed):
    """And a refusal says nothing else than cures that can be typed, memory to free, and that a model may be smaller."""
    chance = random.Random(seed)
    for _ in range(6):
        settings = chance.sample(SETTINGS, chance.choice((1, 1, 2, 3)))
        names = [setting.split(" ")[0] for setting in settings]
        if len({*names}) == len(names):
            check_cures(cli, f"{chance.choice(MODELS)} --for {chance.choice(CARDS)} {' '.join(settings)}")


def check_cures(cli, asked: str) -> None:
    outcome = cli("plan", *asked.split())
    if outcome.code == 0:
        return
    assert outcome.code in (2, 4), outcome.last_line
    for cure in re.split(",? or ", outcome.last_line.rpartition("; ")[2]):
        typed = typed_after(asked, cure)
        assert typed or re.fullmatch(r"choose a smaller model( \(no card .*\))?|free [\d.]+ [GM]iB of memory", cure), (
            cure
        )
        for command in typed:
            tried = cli("plan", *command.split())
            assert tried.code == 0, (asked, cure, command, tried.last_line)


def typed_after(asked: str, cure: str) -> list[str]:
    """The commands that a cure asks for; none where it names none."""
    changes = [
        re.fullmatch(r"(?:lower|raise|set|pass) (--[\w-]+)(?: to (\S+)( \(slow.*\))?)?", one)
        for one in cure.split(" and ")
    ]
    if all(changes):
        for change in changes:
            asked = " ".join(filter(None, (without(asked, change[1]), change[1], change[2])))
        return [asked]
    if edition := re.fullmatch(r"take (\S+/\S+)( \(slow on this GPU\))?", cure):
        return [re.sub(r"^\S+", edition[1], asked)]
    found = re.fullmatch(r"(?:leave out (.+?))?(?: and )?(?:take a card that holds it \(--for (.*)\))?", cure)
    if not found:
        return []
    for flag in re.findall(r"--[\w-]+", found[1] or ""):
        assert flag in asked, cure
        asked = without(asked, flag)
    return [re.sub(r"--for \S+", f"--for {card}", asked) for card in found[2].split(", ")] if found[2] else [asked]


def without(asked: str, flag: str) -> str:
    """A command without a flag and its value."""
    asked = asked.replace(f" {flag.replace('--', '--no-', 1)}", "")
    return re.sub(rf" {flag}( (?!-)\S+)?", "", asked)


@pytest.mark.parametrize("key", GPUS)
@pytest.mark.parametrize("memory", ["", " --memory 4G"])
def test_the_card_of_this_machine_is_no_other_card_and_its_name_can_be_typed(cli, monkeypatch, key, memory):
    """With all of it free, and a model that needs more than --memory, or than any card of its kind has."""
    name, free_mib = DRIVERS_NAMES.get(key, GPUS[key].device_kind), GPUS[key].free_bytes >> 20
    gpus = nvidia.parse_gpus(f"0, GPU-1, {name}, 580.1, {free_mib + 1}, {free_mib}\n")
    monkeypatch.setattr(nvidia, "list_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert known_gpu(gpus[0]).key == key
    assert named_target(name) == GPUS[key]
    asked = f"Qwen/Qwen3-4B{memory}" if memory else "meta-llama/Meta-Llama-3-70B"
    said = cli("plan", *asked.split()).last_line
    if memory:
        assert ", or leave out --memory, or " in said
        assert cli("plan", *asked.removesuffix(memory).split()).code == 0
    elif cards := re.findall(r"\(--for ([\w, ]+)\)", said):
        assert key not in cards[0].split(", ")


@pytest.mark.parametrize(
    ("name", "total_gib", "card"),
    [("NVIDIA A100-SXM4-40GB", 40, "a100"), ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, "4090")],
)
def test_a_card_of_less_memory_than_its_namesake_may_be_told_to_take_that(cli, monkeypatch, name, total_gib, card):
    gpus = nvidia.parse_gpus(f"0, GPU-1, {name}, 580.1, {total_gib << 10}, {total_gib << 10}\n")
    monkeypatch.setattr(nvidia, "list_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert known_gpu(gpus[0]).key == ""
    model = "Qwen/Qwen2.5-32B" if card == "a100" else "Qwen/Qwen3-8B --max-model-len 20480"
    assert re.search(rf"\(--for [\w, ]*\b{card}\b", cli("plan", *model.split()).last_line)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("NVIDIA H200 NVL", "--for h200 --memory 140G"),
        ("NVIDIA H100 NVL", "--for h100 --memory 79G"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "--for rtxpro6000 --memory 95G"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "--for 4090 --memory 23G"),
    ],
)
def test_a_variant_of_a_card_is_refused_with_that_card_and_its_memory(cli, name, cure):
    """Its memory and speed may be others, so that it is not taken for that card."""
    said = cli("plan", "demo", "--for", name).last_line
    assert said.endswith(f"its memory: {cure}"), said
    assert cli("plan", "demo", *cure.split()).code == 0
