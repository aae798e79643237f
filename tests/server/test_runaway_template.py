"""A checkpoint's template in the whole program: one that leaves the sandbox is refused at the start (A22), and one that
passed its trial and runs away for some message costs a 400 in time and nobody else anything (A23).
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.errors import CheckpointError
from tests.server.dry import PACE, PACED, dry_server, gaps_of_a_stream, p99, seconds_of_a_check, share_of_the_pace
from tests.server.http import CHAT, error_of
from tests.server.rest import ends_at_rest
from tests.support.attempts import assert_below
from tests.support.processes import SERVE, children_of, environment, forget_peak, peak_kib, seconds_of_processor

WAYS = {
    "turns": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "range": "{% for a in range(10**9) %}{% endfor %}",
    "size": "{{ 'A' * 10**10 }}",
    "doubling": "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "macro": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
}


@pytest.fixture
def model(tmp_path) -> Path:
    """The demo's settings and tokenizer, and a template that a message chooses a way of running away in."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in DEMO_FOLDER.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    cases = "".join(
        f"{{% {'el' * (i > 0)}if messages[-1].content == '{name}' %}}{source}"
        for i, (name, source) in enumerate(WAYS.items())
    )
    template = cases + "{% else %}{% for m in messages %}{{ m.content }}{% endfor %}{% endif %}"
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_server_does_not_start_with_a_template_that_leaves_the_sandbox(tmp_path, model):
    (model / "chat_template.jinja").write_text("{{ cycler.__init__.__globals__.os.system('touch sentinel') }}")
    command = [sys.executable, *SERVE, model, "--dry-run", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=120)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == CheckpointError.exit_code == 3
    assert last.startswith("error:") and "template" in last and "Traceback" not in done.stderr
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.slow
def test_a_template_that_runs_away_for_a_message_costs_that_request_alone(tmp_path, model):
    with (
        dry_server(tmp_path / "log", model, *PACED) as served,
        dry_server(tmp_path / "control", "demo", *PACED) as control,
        ends_at_rest(served.place),
    ):

        def ask(content: str) -> int:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
            response = served.client.post(CHAT, json=body)
            if response.status_code != 200:
                assert "template" in error_of(response)["message"]
            return response.status_code

        engine = children_of(served.pid)
        assert ask("hello") == 200
        before = forget_peak(served.pid)

        def share_of_what_is_allowed() -> tuple[float, float, float]:
            checks, control_checks, processor_s = [], [], []
            with ThreadPoolExecutor(3) as pool:
                streams = [pool.submit(gaps_of_a_stream, each.port, 500) for each in (served, control)]
                for name in WAYS:
                    begun_s = seconds_of_processor(served.pid)
                    refused = pool.submit(ask, name)
                    while not refused.done():
                        checks.append(seconds_of_a_check(served.client))
                        control_checks.append(seconds_of_a_check(control.client))
                        time.sleep(0.01)
                    processor_s.append(seconds_of_processor(served.pid) - begun_s)
                    assert refused.result() == 400, name
                gaps, control_gaps = (stream.result() for stream in streams)
            of_checks = p99(checks) / (p99(control_checks) + 0.05)
            return max(processor_s) / 3, of_checks, share_of_the_pace(gaps, control_gaps)

        law = f"of three seconds of the server's processors for two of the template's, of a check and 50 ms, {PACE}"
        assert_below(1, lambda: max(share_of_what_is_allowed()), law)
        assert ask("hello") == 200
        assert peak_kib(served.pid) - before < 256 * 2**10
        assert children_of(served.pid) == engine
