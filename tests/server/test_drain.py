"""The whole program at its end: SIGTERM lets what runs finish, a second one lets it say that it ends (A41)."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.server.http import COMPLETIONS, error_of, wait_until
from tests.server.streams import Answer, ask_all
from tests.support.attempts import Stopwatch
from tests.support.processes import SERVE, family, serving

NUM_STREAMS = 8
# Forms that are tried in the process of grammars, which must live through a drain and end with it
FORMS: dict[int, dict[str, Any]] = {
    1: {"structured_outputs": {"regex": "[a-z ]+"}},
    4: {"structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 3000}}},
    6: {"structured_outputs": {"grammar": "start: /[0-9]+/"}},
}


@contextmanager
def streaming(
    folder: Path, max_tokens: int, *others: dict[str, Any]
) -> Iterator[tuple[subprocess.Popen[bytes], httpx2.Client, Future[list[Answer]]]]:
    """`jaxinfer serve`, a client of it, and the streams under way, each of which has said something."""
    command = *SERVE, "demo", "--dry-run", "--dry-run-step-ms", "10", "--port", "0"
    with serving(folder / "log", *command) as (process, port), ThreadPoolExecutor(1) as pool:
        # first, since to try them may take longer than the streams without one
        ask_all(port, [{"prompt": [0], "max_tokens": 1} | form for form in FORMS.values()])
        frames = []
        bodies = [{"prompt": [i], "max_tokens": max_tokens} | FORMS.get(i, {}) for i in range(NUM_STREAMS)]
        bodies += others
        answers = pool.submit(ask_all, port, bodies, lambda: frames.append(1))
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            wait_until(lambda: client.get("/load").json()["server_load"] == len(bodies), timeout_s=20)
            already = len(frames)
            wait_until(lambda: len(frames) > already + 5 * NUM_STREAMS, timeout_s=20)
            yield process, client, answers


def test_sigterm_refuses_new_work_lets_eight_streams_finish_and_leaves_no_process(tmp_path):
    with streaming(tmp_path, 200) as (process, client, answers):
        others = family(process.pid)[1:]
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/ready").status_code == 503, timeout_s=2)
        refused = client.post(COMPLETIONS, json={"prompt": "x"})
        assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/health").status_code == 200, "draining is no illness"
        ended = answers.result()
        assert process.wait(20) == 0
    assert [(answer.reasons, answer.usage["completion_tokens"]) for answer in ended] == [({0: "length"}, 200)] * 8
    assert len(others) == 2, "the engine, and what tries grammars"
    assert not any(os.path.exists(f"/proc/{other}") for other in others)
    log = (tmp_path / "log").read_text()
    assert not re.search("Traceback|ERROR", log)
    # nine, where /ready was asked before the server had seen the signal
    assert re.search("SIGTERM: stopping after [89] answers, within ", log) and log.endswith(" stopped\n")


def test_a_second_sigterm_ends_every_stream_with_its_last_event_and_leaves_no_process(tmp_path):
    whole = {"prompt": "x", "max_tokens": 2000, "stream": False}
    with streaming(tmp_path, 2000, whole) as (process, client, answers):
        others = family(process.pid)[1:]
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/ready").status_code == 503, timeout_s=2)
        watch = Stopwatch()
        process.send_signal(signal.SIGTERM)
        ended = answers.result()
        assert process.wait(20) == 1, "each stream's error event came, and then its end"
        took_s = watch.seconds()
    assert [answer.reasons for answer in ended] == [{}] * 9
    assert {answer.error["code"] for answer in ended} == {"draining"}
    assert [answer.status for answer in ended] == [200] * 8 + [503]
    assert took_s < 2, took_s
    assert len(others) == 2, "the engine, and what tries grammars"
    assert not any(os.path.exists(f"/proc/{other}") for other in others)
