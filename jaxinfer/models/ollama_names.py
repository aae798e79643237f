"""Names of Ollama's library and the hub's names of the same models.

A tag of Ollama's is the version that answers chats, unless it says `text` or `base`. The families, their sizes and
what a family without a size means are those of ollama.com/library, of models that known.py has.
"""

import re
from typing import NamedTuple


class _Family(NamedTuple):
    """hub: the hub's name of a size.    sizes: the usual one first.    chats, base: endings of the two versions; None
    where there is no such version.
    """

    hub: str
    sizes: str
    chats: str = "-Instruct"
    base: str | None = ""


_FAMILIES = {
    "llama3": _Family("meta-llama/Meta-Llama-3-{}", "8B 70B"),
    "llama3.1": _Family("meta-llama/Llama-3.1-{}", "8B 70B"),
    "llama3.2": _Family("meta-llama/Llama-3.2-{}", "3B 1B"),
    "llama3.3": _Family("meta-llama/Llama-3.3-{}", "70B", base=None),
    "qwen2.5": _Family("Qwen/Qwen2.5-{}", "7B 0.5B 1.5B 3B 14B 32B 72B"),
    "qwen2.5-coder": _Family("Qwen/Qwen2.5-Coder-{}", "7B 0.5B 1.5B 3B 14B 32B"),
    "qwen3": _Family("Qwen/Qwen3-{}", "8B 0.6B 1.7B 4B 14B 32B", chats="", base=None),
    "qwen3-embedding": _Family("Qwen/Qwen3-Embedding-{}", "8B 0.6B 4B", chats="", base=None),
    "qwq": _Family("Qwen/QwQ-{}", "32B", chats="", base=None),
    "deepseek-r1": _Family("deepseek-ai/DeepSeek-R1-Distill-Qwen-{}", "7B 1.5B 14B 32B", chats="", base=None),
}
# what no rule of a family says, by the beginning of the name
_OTHERS = {
    "qwen3:4b-instruct": "Qwen/Qwen3-4B-Instruct-2507",
    "qwen3:4b-thinking": "Qwen/Qwen3-4B-Thinking-2507",
    "qwq:32b-preview": "Qwen/QwQ-32B-Preview",
    "deepseek-r1:8b-llama": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "deepseek-r1:8b": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:latest": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:70b": "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
}
_MAKERS = {"llama": "llama3.1", "qwen": "qwen3", "deepseek": "deepseek-r1"}  # alone; behind a colon others are meant


def of_ollama(family: str, tag: str = "") -> str | None:
    """The hub's name of a model that Ollama names so; None where we know none.    tag: what follows the colon."""
    name = re.sub(r"^(llama|qwen)-(?=\d)", r"\1", family.casefold()).removesuffix("-instruct")
    name = name if tag else _MAKERS.get(name, name)
    full = f"{name}:{tag.casefold() or 'latest'}-"
    if other := next((hub for begin, hub in _OTHERS.items() if full.startswith(f"{begin}-")), None):
        return other
    if name not in _FAMILIES:
        return None
    words, found = tag.casefold().split("-"), _FAMILIES[name]
    sizes = {size.casefold(): size for size in found.sizes.split()}
    size = sizes.get(words[0]) if re.match(r"e?\d", words[0]) else next(iter(sizes.values()))
    ending = found.base if {"text", "base"} & {*words} else found.chats
    return None if size is None or ending is None else found.hub.format(size) + ending
