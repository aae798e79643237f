"""Ctrl-C while a verb still imports what it needs: numpy would make an ImportError of it, click ends in a traceback."""

import signal
import subprocess
import sys

import pytest

from tests.support.processes import environment

# Ctrl-C as the module is looked for
PROGRAM = """
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if self.came:
            os.write(2, b"went on to import " + name.encode())
        elif name == module:
            self.came = True
            os.kill(os.getpid(), signal.SIGINT)

    came = False

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
from jaxinfer.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("verb", "module"),
    [
        ("version", "jaxinfer.engine.interrupts"),
        ("version", "click"),
        ("list", "numpy"),
        ("plan demo", "numpy"),
        ("bench latency demo", "numpy"),
        ("warmup demo", "numpy"),
        ("sanity", "numpy"),
    ],
)
def test_ctrl_c_during_the_imports_ends_a_verb_without_a_word(verb, module):
    call = [sys.executable, "-c", PROGRAM, module, *verb.split()]
    done = subprocess.run(call, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert verb != "sanity" or "went on" not in done.stderr  # others look at files first, which is held


# SIGTERM as the module is looked for, by an import that makes an ImportError of what comes within, as extensions' do
TERMINATED = """
import importlib.abc, os, signal, sys

class Terminating(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module and not self.came:
            self.came = True
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except KeyboardInterrupt as error:
                raise ImportError("as of an extension") from error

    came = False

module, hears_ctrl_c = sys.argv.pop(1), sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler if hears_ctrl_c == "True" else signal.SIG_IGN)
sys.meta_path.insert(0, Terminating())
from jaxinfer.__main__ import main
main()
"""


@pytest.mark.parametrize("hears_ctrl_c", [True, False], ids=["foreground", "background"])
@pytest.mark.parametrize(
    ("modules", "flags", "said"),
    [
        (
            "jaxinfer.offline.batch msgspec numpy jaxinfer.offline.journal",
            "",
            "was answered; the same command begins anew",
        ),
        ("jaxinfer.offline.journal", "--resume", "more was answered; the same command goes on"),
        (
            "jaxinfer.runtime.nvidia jaxinfer.llm.dry_run jaxinfer.engine.scheduler",
            "",
            "was answered; the same command begins ",
        ),
        ("jaxinfer.llm.thread jaxinfer.llm.dry_run", "--in-process", "was answered; the same command begins anew"),
    ],
)
def test_sigterm_during_the_imports_of_a_batch_says_how_to_go_on(tmp_path, modules, flags, said, hears_ctrl_c):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "hi"}\n')
    words = [
        "batch",
        "demo",
        str(tmp_path / "rows.jsonl"),
        "-o",
        str(tmp_path / "out.jsonl"),
        "--dry-run",
        *flags.split(),
    ]
    for module in modules.split():
        call = [sys.executable, "-c", TERMINATED, module, str(hears_ctrl_c), *words]
        done = subprocess.run(call, env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == -signal.SIGTERM, (module, done)
        assert done.stderr.splitlines()[-1].startswith(f"stopped  nothing {said}"), (module, done)


# Ctrl-C between a coroutine's making and the event loop's taking it
HANDING_OVER = """
import asyncio, os, signal, sys

create_task, name = asyncio.BaseEventLoop.create_task, sys.argv.pop(1)

def interrupted(self, coroutine, **settings):
    if coroutine.__qualname__ == name:
        os.kill(os.getpid(), signal.SIGINT)
    return create_task(self, coroutine, **settings)

asyncio.BaseEventLoop.create_task = interrupted
from jaxinfer.__main__ import main
main()
"""


@pytest.mark.parametrize("verb", ["run demo hi --own-engine", "chat demo --own-engine", "ppl {rows}"])
def test_ctrl_c_before_the_event_loop_has_the_start_ends_a_verb_without_a_word(verb, tmp_path):
    (tmp_path / "rows.txt").write_text("a text")
    words = verb.format(rows=tmp_path / "rows.txt").split()
    call = [sys.executable, "-c", HANDING_OVER, "start_until_serving", *words]
    home = environment() | {"XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(call, env=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done
    assert "never awaited" not in done.stderr and "pending" not in done.stderr and "Trace" not in done.stderr


# Ctrl-C while a thread is in a call that cannot be stopped, as XLA's of a program that it compiles
COMPILING = """
import os, signal, sys, time, types
from concurrent.futures import ThreadPoolExecutor

def start_core(*_):
    print("so far")
    ThreadPoolExecutor(1).submit(time.sleep, 30)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)

sys.modules["jaxinfer.llm.build"] = types.ModuleType("jaxinfer.llm.build")
sys.modules["jaxinfer.llm.build"].start_core = start_core
from jaxinfer.__main__ import main
main()
"""


def test_ctrl_c_while_a_verb_compiles_ends_it_at_once():
    call = [sys.executable, "-c", COMPILING, "warmup", "demo"]
    done = subprocess.run(call, env=environment(), capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout) == (130, "so far\n"), done


def test_the_program_looks_for_no_other_module_before_it_can_hear_ctrl_c():
    """What is left is Python's own start, and `re`, which pip's launcher imports before us."""
    program = "import sys; before = set(sys.modules); import jaxinfer.__main__; print(*set(sys.modules) - before)"
    call = [sys.executable, "-c", program]
    done = subprocess.run(call, env=environment(), capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == {"jaxinfer", "jaxinfer.version", "jaxinfer.__main__"}
