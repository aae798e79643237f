"""`jaxinfer connect`: what it asks a server, what it prints, and that no key is in it. The settings of clients that are
installed are run by tests/clients/test_connect.py.
"""

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from jaxinfer.cli.snippets import CLIENTS, LONG_PROMPTS, Server, codex, curl
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import live

KEY = ApiKey("a", "sk-never-shown-0123456789")
VARIABLE = "MY_SERVER_KEY"


@pytest.fixture
def url() -> Iterator[str]:
    with live(create_app(FakeLLM())) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def guarded(monkeypatch) -> Iterator[str]:
    monkeypatch.setenv(VARIABLE, KEY.secret)
    with live(create_app(FakeLLM(), ServerSettings(api_keys=(KEY,)))) as port:
        yield f"http://127.0.0.1:{port}"


def test_every_client_gets_the_server_s_model_and_address(cli, url):
    outcome = cli("connect", "--url", f"{url}/v1/")
    assert outcome.code == 0
    assert outcome.out.startswith(f"tiny at {url}/v1; it asks for no key\n")
    assert all(f"## {client.title} (`jaxinfer connect {name}`)" in outcome.out for name, client in CLIENTS.items())
    assert "does not offer" not in outcome.out and "environ" not in outcome.out


def test_a_key_is_named_by_its_variable_and_never_shown(cli, guarded):
    outcome = cli("connect", "--url", guarded, "--api-key-env", VARIABLE)
    assert f"it asks for a key, read from ${VARIABLE}" in outcome.out
    assert KEY.secret not in outcome.out + outcome.err
    for name in CLIENTS:
        assert VARIABLE in cli("connect", name, "--url", guarded, "--api-key-env", VARIABLE).out


def test_a_server_with_keys_is_asked_with_one_or_not_at_all(cli, guarded, monkeypatch):
    outcome = cli("connect", "--url", guarded)
    assert (outcome.code, outcome.out) == (2, "")
    assert "asks for a key; name the variable that holds it, as in --api-key-env MY_KEY" in outcome.last_line
    monkeypatch.setenv(VARIABLE, "sk-wrong-wrong-wrong")
    outcome = cli("connect", "--url", guarded, "--api-key-env", VARIABLE)
    assert outcome.code == 5 and "HTTP 401" in outcome.last_line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model", "huge"], 2, "the model must be one that"),
        (["--url", "localhost:1"], 2, "--url must begin with http:// or https://"),
        (["--url", "http://127.0.0.1:80o0"], 2, "and perhaps a port, got 'http://127.0.0.1:80o0'"),
        (["--url", "http://127.0.0.1:9"], 5, "no server answers at http://127.0.0.1:9: "),
        (["emacs"], 2, "CLIENT must be one of curl, "),
    ],
)
def test_what_cannot_be_is_one_line(cli, url, arguments, code, said):
    outcome = cli("connect", *(arguments if "--url" in arguments else ["--url", url, *arguments]))
    assert (outcome.code, outcome.out) == (code, "")
    assert said in outcome.last_line


def test_a_client_of_a_route_that_is_not_offered_is_refused(cli):
    async def models(request):
        return JSONResponse({"data": [{"id": "other"}]})

    async def openapi(request):
        return JSONResponse({"paths": {"/v1/chat/completions": {}}})

    with live(Starlette(routes=[Route("/v1/models", models), Route("/openapi.json", openapi)])) as port:
        url = f"http://127.0.0.1:{port}"
        assert "\nneeds /v1/responses, which this server does not offer\n" in cli("connect", "--url", url).out
        outcome = cli("connect", "claude-code", "--url", url)
    assert outcome.code == 5
    assert "claude-code needs /v1/messages" in outcome.last_line


def test_odd_names_cannot_break_out_of_their_quotes(tmp_path):
    model = 'it\'s "a" $(touch pwned) `x`'
    server = Server("http://127.0.0.1:1", model, VARIABLE, max_model_len=100)
    (tmp_path / "curl").write_text('#!/bin/sh\nfor last; do :; done; printf %s "$last"\n')
    for name in ("claude", "open-webui"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf %s "$ANTHROPIC_MODEL|$OPENAI_API_KEY"\n')
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", VARIABLE: "sk"}

    def shell(text: str) -> str:
        command = ["sh", "-c", text]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert json.loads(shell(curl(server)))["model"] == model
    assert shell(CLIENTS["claude-code"].settings(server)) == f"{model}|"
    assert shell(CLIENTS["open-webui"].settings(server)) == "|sk"
    assert not (tmp_path / "pwned").exists()
    for name in ("openai-python", "anthropic-python", "langchain", "litellm"):
        compile(CLIENTS[name].settings(server), name, "exec")


def test_codex_reads_toml_and_learns_when_its_prompts_will_not_fit():
    server = Server("http://127.0.0.1:1", "m", VARIABLE, max_model_len=LONG_PROMPTS - 1)
    assert "max_model_len is 32,767" in codex(server)
    settings = tomllib.loads(codex(server))
    provider = settings.pop("model_providers")[settings.pop("model_provider")]
    assert provider == {"name": "jaxinfer", "base_url": server.v1, "env_key": VARIABLE, "wire_api": "responses"}
    assert settings == {"model": "m", "web_search": "disabled", "model_context_window": LONG_PROMPTS - 1}
    plain = codex(Server("http://127.0.0.1:1", "m", max_model_len=LONG_PROMPTS))
    assert "env_key" not in plain and "prompts" not in plain
    assert "model_context_window" not in codex(Server("http://127.0.0.1:1", "m"))


@pytest.mark.parametrize(("length", "answer"), [(40_960, "10240"), (262_144, "32000"), (None, "")])
def test_claude_code_leaves_an_answer_that_fits_and_begins_all_conversations_alike(tmp_path, length, answer):
    (tmp_path / "claude").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "claude").chmod(0o755)
    settings = CLIENTS["claude-code"].settings(Server("http://127.0.0.1:1", "m", max_model_len=length))
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", settings], env=environment, capture_output=True, text=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert seen["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert seen.get("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "") == answer
    assert seen.get("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "") == ("" if length is None else str(length))
