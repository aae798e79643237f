"""Ollama's names and the hub's: the version that answers chats unless the tag says another, of the same generation."""

import pytest

from jaxinfer.models.known import KNOWN, known_config
from jaxinfer.models.ollama_names import _FAMILIES, of_ollama

NAMES = {
    "llama3.2": "meta-llama/Llama-3.2-3B-Instruct",
    "llama3.2:1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.2:1b-instruct-q4_K_M": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.2:3b-text-q8_0": "meta-llama/Llama-3.2-3B",
    "llama3.1": "meta-llama/Llama-3.1-8B-Instruct",
    "llama3.3": "meta-llama/Llama-3.3-70B-Instruct",
    "llama3.3:70b-text": None,
    "llama3": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3:70b-text": "meta-llama/Meta-Llama-3-70B",
    "llama3:text": "meta-llama/Meta-Llama-3-8B",
    "llama-3.2:3b": "meta-llama/Llama-3.2-3B-Instruct",
    "llama3.1:405b": None,
    "llama3.2-vision:11b": None,
    "llama2:7b": None,
    "qwen2.5:7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5:0.5b-base": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-coder:7b": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "qwen2.5-coder:7b-base-q4_0": "Qwen/Qwen2.5-Coder-7B",
    "qwen2:7b": None,
    "qwen:7b": None,
    "qwen": "Qwen/Qwen3-8B",
    "qwen3": "Qwen/Qwen3-8B",
    "qwen3:0.6b": "Qwen/Qwen3-0.6B",
    "qwen3:8b-q4_K_M": "Qwen/Qwen3-8B",
    "qwen3:4b-instruct-2507-q4_K_M": "Qwen/Qwen3-4B-Instruct-2507",
    "qwen3:4b-thinking": "Qwen/Qwen3-4B-Thinking-2507",
    "qwen3:30b-a3b": None,
    "qwen3-embedding": "Qwen/Qwen3-Embedding-8B",
    "qwen3-embedding:0.6b": "Qwen/Qwen3-Embedding-0.6B",
    "qwq": "Qwen/QwQ-32B",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:latest": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:8b": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:8b-llama-distill-q4_K_M": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "deepseek-r1:7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "deepseek-r1:70b": "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    "deepseek-r1:671b": None,
    "mistral:7b": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_ollama_s_is_that_of_the_same_model_on_the_hub(name):
    family, _, tag = name.partition(":")
    assert of_ollama(family, tag) == NAMES[name]


def test_every_size_of_every_family_is_a_model_that_a_plan_knows():
    for family, found in _FAMILIES.items():
        for size in found.sizes.split():
            tags = [size.lower(), *([f"{size.lower()}-base"] if found.base is not None else [])]
            names = [of_ollama(family, tag) for tag in tags]
            assert all(name and known_config(name) is not None for name in names), names
    assert "meta-llama/Llama-3.3-70B" not in KNOWN, "the hub has no base version of it"
