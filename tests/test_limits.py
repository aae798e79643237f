"""docs/limits.md tells the truth: each fixed limit it names has the value that it gives."""

import re
from pathlib import Path

import pytest

from jaxinfer.protocol import body, completions, embeddings, messages, session, tools, validate
from jaxinfer.server import profiling, wire
from jaxinfer.server.guard import OPEN
from jaxinfer.server.settings import ServerSettings

TEXT = (Path(__file__).parents[1] / "docs" / "limits.md").read_text()
ROWS = re.findall(r"^\|[^|]*\|([^|]*)\| fixed, `([A-Z_]+)` \|", TEXT, re.MULTILINE)
MODULES = (body, completions, embeddings, messages, profiling, session, tools, validate, wire)


@pytest.mark.parametrize(("given", "name"), ROWS, ids=[name for _, name in ROWS])
def test_a_fixed_limit_is_what_the_table_says(given, name):
    (value,) = {vars(module)[name] for module in MODULES if name in vars(module)}
    assert float(re.search(r"\d+", given)[0]) == value


def test_every_fixed_limit_is_in_the_table():
    limits = {name for module in MODULES for name in vars(module) if name.startswith("MAX_")}
    assert limits - {"MAX_LOGPROBS"} <= {name for _, name in ROWS}  # that one has a flag
    assert "| `logprobs`, `top_logprobs`, `prompt_logprobs` | 20 |" in TEXT
    assert validate.MAX_LOGPROBS == 20


def test_the_other_facts_are_true():
    assert "| body | 16 MiB |" in TEXT
    assert ServerSettings().max_body_bytes == 16 * 2**20
    assert "| sessions of a tenant | 100 |" in TEXT and "| a session without a turn | 30 minutes |" in TEXT
    assert (ServerSettings().max_sessions_per_key, ServerSettings().max_session_idle_s) == (100, 30 * 60)
    assert "| 1000 | `--max-stored-responses` |" in TEXT and ServerSettings().max_stored_responses == 1000
    assert "| 64 MiB | `--max-stored-bytes` |" in TEXT and ServerSettings().max_stored_bytes == 64 * 2**20
    assert "| 24 hours | `--max-stored-age-s` |" in TEXT and ServerSettings().max_stored_age_s == 24 * 3600
    assert all(f"`{path}`" in TEXT for path in OPEN)
