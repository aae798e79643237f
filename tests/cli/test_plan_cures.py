"""What `jaxinfer plan` tells of a model that does not fit, and that it helps."""

import re

import pytest


@pytest.mark.parametrize(
    ("asked", "cures"),
    [
        ("Qwen/Qwen3-8B --for 4090 --memory 12G", "raise --memory, now 12G;set;take Qwen;leave out --memory;choose"),
        ("Qwen/Qwen2.5-14B --for 4090 --memory 12G", "raise;leave out --memory and take a card (--for l40s;choose"),
        ("demo --for cpu --memory 10M", "raise --memory, now 10M;choose a smaller model"),
        ("Qwen/Qwen3-8B --for cpu --memory 12G", "raise;set --quantization to int8;choose"),
        ("Qwen/Qwen3-14B --for h100 --memory 24G", "raise;set --quantization;take Qwen/Qwen3-14B-FP8;leave out;choose"),
        (
            "Qwen/Qwen2.5-32B --for 5090 --max-num-batched-tokens 1",
            "leave out --max-num-batched-tokens and take a card",
        ),
        (
            "Qwen/Qwen2.5-32B --for 5090 --max-num-batched-tokens 32",
            "leave out --max-num-batched-tokens and take a card",
        ),
        (
            "meta-llama/Meta-Llama-3-70B --for a10 --max-model-len 128K",
            "leave out --max-model-len and take (--for b200)",
        ),
        ("Qwen/Qwen2.5-Coder-14B --for 5090 --kv-cache-memory-bytes 1M", "leave out --kv-cache-memory-bytes and take"),
        ("Qwen/Qwen2.5-72B --for l4 --dtype float32", "leave out --dtype and take a card (--for b200);choose"),
        ("meta-llama/Llama-3.1-8B --for 5090 --memory 6G --num-pages 9000", "raise;leave out --memory and --num-pages"),
    ],
)
def test_the_cures_of_a_card_or_a_memory_help_when_they_are_typed(cli, asked, cures):
    """cures: words of each, in order."""
    said = cli("plan", *asked.split()).last_line.rpartition("; ")[2].split(", or ")
    for words, cure in zip(cures.split(";"), said, strict=False):
        assert re.search(".*".join(map(re.escape, words.split())), cure), said
    for cure in said:
        typed = typed_after(asked, cure)
        assert typed is None or cli("plan", *typed.split()).code == 0, (cure, typed)


def typed_after(asked: str, cure: str) -> str | None:
    """The command that a cure asks for; None where it names none."""
    for flag in re.findall(r"--[\w-]+", cure.partition("take a card")[0] if cure.startswith("leave out") else ""):
        asked = re.sub(rf"{flag} \S+ ?", "", asked)
    if card := re.search(r"\(--for (\w+)", cure):
        return re.sub(r"--for \w+", f"--for {card[1]}", asked)
    if edition := re.match(r"take (\S+/\S+)", cure):
        return re.sub(r"^\S+", edition[1], asked)
    if setting := re.match(r"set (--\w+) to (\w+)", cure):
        return f"{asked} {setting[1]} {setting[2]}"
    return asked if cure.startswith("leave out") else None
