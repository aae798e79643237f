"""How long from the start of `jaxinfer serve --serve-early` to its first token, and to ready: cold and from the cache.

    PYTHONPATH=.:kernels python benchmarks/startup.py NAME=FOLDER ... [--json FILE] [-- FLAGS of serve]

Cold: no compiled step of ours, none of the driver's (CUDA_CACHE_DIR). Cached: the same folders, as the cold start left
them. Packages and weights may lie in the page cache in both.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jaxinfer.bench import machine
from jaxinfer.bench.program import free_port
from jaxinfer.bench.report import Report, Table, Value

SERVE = [sys.executable, "-c", "from jaxinfer.cli import main; main()", "serve"]
LIMIT_S, PAUSE_S = 400, 0.02
REQUEST = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--json", type=Path)
    before, _, flags = " ".join(sys.argv[1:]).partition(" -- ")
    arguments = parser.parse_args(before.split())
    rows: list[tuple[Value, ...]] = []
    for model in arguments.models:
        name, _, folder = model.partition("=")
        with tempfile.TemporaryDirectory() as cache:
            rows += [(f"{name} {kind}", *start(folder, flags.split(), cache)) for kind in ("cold", "cached")]
    columns = ("start", "first token s", "ready s")
    facts = [*machine.facts(), ("flags", f"--serve-early {flags}")]
    report = Report("startup", facts, [Table("startup", columns, rows)])
    print(report.as_markdown())
    if arguments.json:
        arguments.json.write_text(report.as_json())


def start(folder: str, flags: list[str], cache: str) -> tuple[float, float]:
    """Seconds from the start of the process to its first token and to ready."""
    port = free_port()
    began_s = time.monotonic()
    with server([*SERVE, folder, "--serve-early", "--port", str(port), *flags], cache) as process:
        first_s = wait(process, port, "POST", "/v1/completions", REQUEST) - began_s
        return first_s, wait(process, port, "GET", "/ready") - began_s


@contextlib.contextmanager
def server(command: list[str], cache: str) -> Iterator["subprocess.Popen[bytes]"]:
    caches = {"JAXINFER_COMPILE_CACHE_DIR": f"{cache}/steps", "CUDA_CACHE_DIR": f"{cache}/cuda"}
    with subprocess.Popen(command, env=os.environ | caches) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def wait(process: "subprocess.Popen[bytes]", port: int, method: str, path: str, body: bytes = b"") -> float:
    """Ask until the answer is 200; when it came."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return time.monotonic()
        except OSError:
            time.sleep(PAUSE_S)  # not listening yet
        finally:
            connection.close()
        time.sleep(PAUSE_S)
    raise SystemExit(f"error: {path} must answer 200 within {LIMIT_S} s, it did not; see the server's log above")


if __name__ == "__main__":
    main()
