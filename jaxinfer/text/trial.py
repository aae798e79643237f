"""Tries a checkpoint's chat template once, in a process that can be killed, before anything of value runs beside it.

`python -m jaxinfer.text.trial` is that process: a JSON object on stdin, a JSON string on stdout, empty if all is well.
It renders conversations of every kind. That a template refuses some of them is normal; that it runs away, eats memory
or reaches for what the sandbox hides is not. Imports no jax.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from jinja2.exceptions import SecurityError

from jaxinfer import children
from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.text.chat_template import ChatTemplate
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


def try_template(folder: str | Path, *, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES) -> None:
    """Run the trial of the template in a checkpoint's folder. Raises CheckpointError when the template is not fit."""
    given = json.dumps({"folder": str(folder), "timeout_s": timeout_s, "memory_bytes": memory_bytes})
    try:
        child = subprocess.run(
            children.python("-m", "jaxinfer.text.trial"),
            input=given,
            capture_output=True,
            text=True,
            env=children.environment(),
            timeout=timeout_s + 10,  # Python's own start, on a busy machine
        )
    except subprocess.TimeoutExpired:
        raise _refused(f"it ran for more than {timeout_s + 10:g} s") from None
    if child.returncode < 0:  # the system's limit
        raise _refused(f"it took more than {timeout_s:g} s of processor time")
    if child.returncode > 0:
        raise _refused(f"rendering it ended with status {child.returncode}: {child.stderr.strip()[-300:]}")
    if reason := json.loads(child.stdout):
        raise _refused(reason)


def _refused(reason: str) -> CheckpointError:
    return CheckpointError(
        f"a chat template must render within its limits, and this model's does not: {reason}. "
        "Use a chat_template.jinja that you trust."
    )


def _main() -> None:
    given = json.load(sys.stdin)
    _limit(given["timeout_s"], given["memory_bytes"])
    try:
        reason = _try(Path(given["folder"]))
    except MemoryError:
        reason = f"it needs more than {given['memory_bytes'] >> 20} MiB"
    except CheckpointError as error:
        reason = str(error)
    json.dump(reason, sys.stdout)


def _try(folder: Path) -> str:
    template = ChatTemplate.from_folder(folder)
    for trial in _TRIALS if template.exists else ():
        try:
            template.render(**trial)
        except InvalidRequest as refusal:
            if isinstance(refusal.__cause__, MemoryError):
                raise refusal.__cause__ from None
            if isinstance(refusal.__cause__, (LimitExceeded, SecurityError)):
                return f"{refusal.__cause__}"
    return ""


def _limit(timeout_s: float, memory_bytes: int) -> None:
    """Processor time and memory of this process, as far as the system knows such limits."""
    with contextlib.suppress(ImportError):
        import resource

        seconds = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime + timeout_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    limit_memory(memory_bytes)


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
