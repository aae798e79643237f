"""docs/limits.md tells the truth: each fixed limit it names has the value that it gives."""

import re
from pathlib import Path

import pytest

from jaxinfer.llm import structure
from jaxinfer.offline import batches, survey
from jaxinfer.offline.files import KeptLimits
from jaxinfer.offline.rows import MAX_ROW_BYTES
from jaxinfer.protocol import body, completions, embeddings, messages, session, structured, tools, validate
from jaxinfer.protocol.batches import WINDOW_S
from jaxinfer.runtime import plan
from jaxinfer.server import large_bodies, linger, multipart, profiling, sessions, wire
from jaxinfer.server.guard import OPEN
from jaxinfer.server.settings import ServerSettings
from jaxinfer.text.grammar import trial

TEXT = (Path(__file__).parents[1] / "docs" / "limits.md").read_text()
ROWS = re.findall(r"^\|[^|]*\|([^|]*)\| fixed, `([A-Z_]+)` \|", TEXT, re.MULTILINE)
MODULES = (
    *(batches, body, completions, embeddings, large_bodies, linger, messages, multipart, profiling, session, sessions),
    *(structured, survey, tools, validate, wire),
)


OF_GRAMMARS = ("MAX_TEXT_CHARS", "MAX_WAITING_TRIALS")


@pytest.mark.parametrize(("given", "name"), [row for row in ROWS if row[1] not in OF_GRAMMARS], ids=str)
def test_a_fixed_limit_is_what_the_table_says(given, name):
    (value,) = {vars(module)[name] for module in MODULES if name in vars(module)}
    assert float(re.search(r"\d+", given)[0]) == value


def test_the_limits_of_grammars_are_in_the_table():
    values = trial.MAX_TEXT_CHARS, structure.MAX_WAITING_TRIALS
    assert {name: int(given) for given, name in ROWS if name in OF_GRAMMARS} == dict(
        zip(OF_GRAMMARS, values, strict=True)
    )


def test_every_fixed_limit_is_in_the_table():
    limits = {name for module in MODULES for name in vars(module) if name.startswith("MAX_")}
    assert limits - {"MAX_LOGPROBS"} <= {name for _, name in ROWS}  # that one has a flag
    assert "| `logprobs`, `top_logprobs`, `prompt_logprobs` | 20 |" in TEXT
    assert validate.MAX_LOGPROBS == 20


def test_as_many_biases_fit_a_device_s_column_as_a_request_may_have():
    assert validate.MAX_LOGIT_BIAS <= plan.MAX_LOGIT_BIAS


def test_the_other_facts_are_true():
    assert "| body | 16 MiB |" in TEXT
    assert ServerSettings().max_body_bytes == 16 * 2**20
    assert "| sessions of a tenant | 100 |" in TEXT and "| a session without a turn | 30 minutes |" in TEXT
    assert (ServerSettings().max_sessions_per_key, ServerSettings().max_session_idle_s) == (100, 30 * 60)
    assert "| 1000 | `--max-stored-responses` |" in TEXT and ServerSettings().max_stored_responses == 1000
    assert "| 64 MiB | `--max-stored-bytes` |" in TEXT and ServerSettings().max_stored_bytes == 64 * 2**20
    assert "| 24 hours | `--max-stored-age-s` |" in TEXT and ServerSettings().max_stored_age_s == 24 * 3600
    assert "| time for a step while there is work | 10 s;" in TEXT and ServerSettings().stall_timeout_s == 10
    assert ServerSettings().ping_interval_s == 15  # A41: what proxies take for a sign of life
    assert all(f"`{path}`" in TEXT for path in OPEN)


def test_the_facts_of_what_is_kept_are_true():
    kept = KeptLimits()
    for flag, given, value in (
        ("--max-file-bytes", "200 MiB", kept.max_file_bytes / 2**20),
        ("--max-files-per-key", "1000", kept.max_files),
        ("--max-files-bytes-per-key", "4 GiB", kept.max_bytes / 2**30),
        ("--max-batches-per-key", "100", kept.max_batches),
        ("--max-batch-rows", "50000", kept.max_rows),
        ("--max-file-age-s", "30 days", kept.max_age_s / 86400),
    ):
        assert f"| {given} | `{flag}` |" in TEXT and float(given.split()[0]) == value
    assert "| bytes of a row | less than 16 MiB |" in TEXT and MAX_ROW_BYTES == 16 * 2**20
    assert "| time for a batch | 24 hours |" in TEXT and WINDOW_S == 24 * 3600
