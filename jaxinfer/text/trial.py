"""Tries a checkpoint's tokenizer and chat template once, in a process that can be killed, before anything of value runs
beside it.

`python -m jaxinfer.text.trial` is that process: a JSON object on stdin; on stdout a line with what it tries, for each,
and then a JSON object: the reason, empty if all is well, and whether it is a whole sentence. It splits a text,
decodes tokens alone and in runs, and renders conversations of every kind. That a template refuses some of them is
normal; that it runs away, eats memory or reaches for what the sandbox hides is not. Imports no jax.
"""

import contextlib
import heapq
import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from jinja2.exceptions import SecurityError

from jaxinfer import children
from jaxinfer.errors import CheckpointError, ConfigError, InvalidRequest
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.growth import check_growth
from jaxinfer.text.linear import nonlinear_rules
from jaxinfer.text.pieces import pieces_of
from jaxinfer.text.rust import LibraryPanic, panics_as_exceptions
from jaxinfer.text.sandbox import LimitExceeded

TIMEOUT_S = 2.0  # of processor time
MEMORY_BYTES = 192 << 20  # beyond what Python itself has mapped

_CALL = {"id": "call1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
_QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]
_CALLED = [*_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
_TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
_ANSWER = {"role": "assistant", "reasoning_content": "1 + 1 = 2", "content": "2"}
_TRIALS: tuple[dict[str, Any], ...] = (
    {"messages": _QUESTION},
    {"messages": [{"role": "system", "content": "Be kind."}, *_QUESTION, _ANSWER, *_QUESTION]},
    {"messages": _QUESTION, "tools": [_TOOL], "template_kwargs": {"enable_thinking": False}},
    {"messages": [*_CALLED, {"role": "tool", "tool_call_id": "call1", "content": "2"}], "tools": [_TOOL]},
    {"messages": [*_QUESTION, _ANSWER], "add_generation_prompt": False, "continue_final_message": True},
)


def try_text(
    folder: str | Path,
    template_file: str | Path | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = MEMORY_BYTES,
) -> None:
    """Run the trial of the tokenizer and the template in a checkpoint's folder. Raises CheckpointError if one is unfit.

    template_file: in the place of the folder's own.    timeout_s: of processor time, for each of the two.
    """
    template = None if template_file is None else str(template_file)
    given = json.dumps(
        {"folder": str(folder), "template": template, "timeout_s": timeout_s, "memory_bytes": memory_bytes}
    )
    child = subprocess.Popen(
        children.python("-m", "jaxinfer.text.trial"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=children.environment(),
    )
    late = ""
    try:
        said, errors = child.communicate(given, timeout=2 * timeout_s + 10)  # Python's own start, on a busy machine
    except subprocess.TimeoutExpired:
        child.kill()
        said, errors = child.communicate()
        late = f"it ran for more than {2 * timeout_s + 10:g} s"
    subjects = said.splitlines()
    # what it found stands, though a limit may have struck as it ended
    if child.returncode == 0 or (subjects and subjects[-1].startswith("{")):
        told = json.loads(subjects.pop())
        reason = told["reason"]
        if told["is_sentence"]:
            raise CheckpointError(reason)
    else:
        reason = late or _reason_of(child.returncode, errors, timeout_s, memory_bytes)
    if reason:
        raise CheckpointError(_refusal(subjects[-1] if subjects else TEMPLATE, reason.rstrip("."), template))


TOKENIZER, TEMPLATE = "tokenizer", "template"
_REFUSALS = {
    TOKENIZER: "a tokenizer must split and decode a text within its limits, and this model's does not: {}. "
    "Use a tokenizer.json that you trust, with --tokenizer.",
    TEMPLATE: "a chat template must render within its limits, and this model's does not: {}. "
    "Use a chat_template.jinja that you trust.",
}


def _refusal(subject: str, reason: str, template_file: str | None) -> str:
    """What is unfit, and why. A template of the user's is none of the model's."""
    if subject == TEMPLATE and template_file is not None:
        fault = f"{template_file} (chat_template) must render within its limits, and it does not"
        return f"{fault}: {reason}. Mend it, or use another file."
    return _REFUSALS[subject].format(reason)


def _reason_of(status: int, errors: str, timeout_s: float, memory_bytes: int) -> str:
    """Why a child ended with this status; empty for 0."""
    if status == -signal.SIGABRT:  # how the tokenizers library ends when it is given no memory
        return _too_much(memory_bytes)
    if status < 0:  # the system's limit
        return f"it took more than {timeout_s:g} s of processor time"
    return f"trying it ended with status {status}: {errors.strip()[-300:]}" if status else ""


def _too_much(memory_bytes: int) -> str:
    return f"it needs more than {memory_bytes >> 20} MiB"


def _main() -> None:
    given = json.load(sys.stdin)
    limit_memory(given["memory_bytes"])
    reason, is_sentence = "", False
    for subject, attempt in (
        (TOKENIZER, _try_tokenizer),
        (TEMPLATE, partial(_try_template, file=given["template"])),
    ):
        print(subject, flush=True)
        _limit_time(given["timeout_s"])
        try:
            reason = attempt(Path(given["folder"]))
        except MemoryError:
            reason = _too_much(given["memory_bytes"])
        except (CheckpointError, ConfigError) as error:
            reason, is_sentence = str(error), True
        if reason:
            break
    json.dump({"reason": reason, "is_sentence": is_sentence}, sys.stdout)


class _Added(msgspec.Struct):
    content: str
    normalized: bool = False


class _File(msgspec.Struct):
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None
    model: dict[str, msgspec.Raw] | None = None
    added_tokens: list[_Added] = []


def _try_tokenizer(folder: Path) -> str:
    """What the library cannot read, or what is refused for its size, is for the one who loads it to say."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return ""
    try:
        read = msgspec.json.decode(file.read_bytes(), type=_File)
        check_growth(read.normalizer, read.pre_tokenizer, read.decoder)
        # texts that users write are encoded where that can be ended, answers are decoded in the server
        decoder = None if pieces_of(read.decoder) is not None else read.decoder  # ours decodes what has pieces
        if rules := nonlinear_rules(decoder):
            return f"its decoder has a {rules[0]}, which may take longer than in proportion to a text"
        parts = {"normalizer": read.normalizer, "pre_tokenizer": read.pre_tokenizer, "decoder": decoder}
        with panics_as_exceptions():
            _try_model(read.model or {})
            backend = tokenizers.Tokenizer.from_str(json.dumps(_EMPTY | parts))
            for text in [_TEXT, *(added.content for added in read.added_tokens if added.normalized)]:
                backend.encode(text)
        tokens = _tokens_of(read) if decoder is not None else ()
    except MemoryError:
        raise
    except LibraryPanic as panic:
        return f"{panic}"[:200]
    except Exception:
        return ""
    return _try_decoder(backend, tokens)


def _tokens_of(file: _File) -> list[str]:
    """The spellings of its tokens, added ones too; those of a Unigram model come with their scores."""
    vocab = msgspec.json.decode((file.model or {})["vocab"], type=dict[str, int] | list[tuple[str, float]])
    own = vocab if isinstance(vocab, dict) else [token for token, _ in vocab]
    return list(dict.fromkeys([*own, *(token.content for token in file.added_tokens)]))


def _try_decoder(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> str:
    """Texts as a model may answer them: no token, each alone, and runs of random ones, of one or of several."""
    if not tokens:
        return ""
    rng = random.Random(0)
    runs = [rng.choices(tokens, k=rng.randint(2, _LONGEST_RUN)) for _ in range(_RUNS)]
    same = [[token] * _LONGEST_RUN for token in rng.choices(tokens, k=_RUNS)]
    for run in itertools.chain([[]], ([token] for token in tokens), runs, same):
        try:
            with panics_as_exceptions():
                backend.decoder.decode(run)
        except LibraryPanic as panic:
            return f"it cannot decode {' '.join(run)[:40]!r}: {panic}"[:200]
    return ""


def _try_model(model: dict[str, msgspec.Raw]) -> None:
    """Of BPE's merges those with the shortest second parts, at which its rules for prefixes and suffixes may fail."""
    if b"BPE" not in bytes(model.get("type", b"")):
        return
    pairs = [_pair(merge) for merge in msgspec.json.decode(model["merges"], type=list[str | list[str]])]
    merges = heapq.nsmallest(_MERGES, pairs, key=lambda pair: len(pair[1]))
    rules = {key: msgspec.json.decode(value) for key, value in model.items() if key not in ("vocab", "merges")}
    past = len(rules.get("continuing_subword_prefix") or "")
    texts = dict.fromkeys(text for first, second in merges for text in (first, second, first + second[past:]))
    vocab = {text: i for i, text in enumerate([*texts, *filter(None, [rules.get("unk_token")])])}
    file = _EMPTY | {"model": rules | {"vocab": vocab, "merges": merges}}
    with contextlib.suppress(Exception):  # other than a panic: whole it may be readable
        tokenizers.Tokenizer.from_str(json.dumps(file))


def _pair(merge: str | list[str]) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


_TEXT = "aA1 \n\t.'-_!\u00e9\u65e5\u0301"
_MERGES = 64  # of a model that are tried
_RUNS, _LONGEST_RUN = 2**9, 12  # of tokens that are decoded
_EMPTY: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "post_processor": None,
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


def _try_template(folder: Path, file: str | None) -> str:
    template = ChatTemplate.from_folder(folder, file)
    for trial in _TRIALS if template.exists else ():
        try:
            template.render(**trial)
        except InvalidRequest as refusal:
            if isinstance(refusal.__cause__, MemoryError):
                raise refusal.__cause__ from None
            if isinstance(refusal.__cause__, (LimitExceeded, SecurityError)):
                return f"{refusal.__cause__}"
    return ""


def _limit_time(seconds: float) -> None:
    """More processor time of this process from now on, as far as the system knows such a limit."""
    with contextlib.suppress(ImportError):
        import resource

        until = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def limit_memory(memory_bytes: int) -> None:
    """Beyond what this process has mapped, as far as the system knows such a limit."""
    with contextlib.suppress(ImportError):
        import resource

        mapped = Path("/proc/self/statm")
        if mapped.exists():
            bytes_now = int(mapped.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (bytes_now + memory_bytes, bytes_now + memory_bytes))


if __name__ == "__main__":
    _main()
