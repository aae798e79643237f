"""schemathesis, as anybody would run it against a server: over the whole wire, and a dry run's engine behind it."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.dry import dry_llm
from tests.server.http import CHAT, COMPLETIONS, MESSAGES, RESPONSES, live, wait_until

KEY = ApiKey("a", "sk-0123456789")
# The document leaves out rules between two fields, and what fits into a model's context: such a body may be a 400.
# test_openapi.py asks for each field alone that what the document allows is taken.
EXCLUDED = "positive_data_acceptance"
LEAST_CASES = 1000


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    return dry_llm(0)


@pytest.fixture(scope="module")
def port(llm: AsyncLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    app = create_app(llm, ServerSettings(api_keys=(KEY,), files_folder=tmp_path_factory.mktemp("files")))
    with contextlib.closing(app.state.storage), live(app, llm.start, llm.close) as port:
        yield port


@pytest.mark.slow
def test_schemathesis_finds_nothing_undocumented_and_no_5xx(llm, port, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {KEY.secret}", "--checks", "all", "--exclude-checks", EXCLUDED]
    command += ["--seed", "1", "--generation-deterministic", "--max-examples", "10", "--continue-on-failure"]
    command += ["--report", "json", "--report-json-path", str(report), "--no-color"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert (found["failures"], found["errors"]) == ([], [])
    assert found["test_cases"]["generated"] >= LEAST_CASES
    assert found["operations"]["tested"] == found["operations"]["total"]
    rates = found["valid_rates"]
    assert all(rates[f"POST {path}"]["fuzzing"]["accepted"] for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES))
    wait_until(lambda: (llm.stats().running, llm.stats().waiting, llm.stats().pages_owned) == (0, 0, 0))
    assert llm.stats().restarts == 0
