"""GET /: one page that loads nothing, and the headers it comes with. What it does in a browser: tests/browser."""

import json
import re
import subprocess
import sys
from html import unescape
from importlib.resources import files
from pathlib import Path

import pytest

from jaxinfer.server.chat_page import HEADERS, PAGE, SCRIPTS, VENDORED
from jaxinfer.server.html import source
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import ask

TEXT = PAGE.decode()
NAMES = ("style", "script")


def directives(policy: str) -> dict[str, str]:
    return dict(part.strip().partition(" ")[::2] for part in policy.split(";"))


def policies() -> list[dict[str, str]]:
    """Those of the header and of the page."""
    (within,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', TEXT)
    return [directives(HEADERS["content-security-policy"]), directives(unescape(within))]


def test_the_page_is_one_file_that_names_nothing_to_load():
    response = ask(FakeLLM(), "GET", "/")
    assert response.content == PAGE and len(PAGE) <= 600_000
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = re.sub(r"<(style|script)>.*?</\1>", "", TEXT, flags=re.DOTALL)
    addresses = re.findall(r'(?:src|href|action|data|poster|srcset)="([^"]*)"', page)
    assert addresses and all(address.startswith(("#", "data:image/svg+xml,")) for address in addresses)
    assert not re.search(
        r"<(iframe|object|embed|base|form [^>]*action)|\son\w+=|\sstyle=|{policy}|{style}|{script}", page
    )
    (style,) = re.findall(r"<style>(.*?)</style>", TEXT, re.DOTALL)
    style = re.sub(r"""url\((["'])data:.*?\1\)""", "", style)
    assert "url(" not in style and "@import" not in style


def test_script_and_style_run_by_their_hash_and_nothing_else_does():
    for policy in policies():
        for name in NAMES:
            (content,) = re.findall(f"<{name}>(.*?)</{name}>", TEXT, re.DOTALL)
            assert policy[f"{name}-src"] == source(content)
        for name, value in {
            "default-src": "'none'",
            "base-uri": "'none'",
            "font-src": "data:",
            "form-action": "'none'",
        }.items():
            assert policy[name] == value
        assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "dompurify"
        assert "unsafe" not in str(policy) and "*" not in str(policy | {"connect-src": ""})
    header, within = policies()
    assert header["connect-src"] == "'self'" and header["frame-ancestors"] == "'none'"
    assert within["connect-src"] == "'self' http://localhost:* http://127.0.0.1:*"


def test_no_script_of_it_makes_markup_of_text_but_the_sanitizer():
    (script,) = re.findall(r"<script>(.*?)</script>", TEXT, re.DOTALL)
    vendored, script = script.split("(() => {\n'use strict';\n")
    assert "<!--" not in vendored + script, "it would hide the script's end"
    assert script.count("DOMPurify.sanitize(") == 1
    dangers = r"\.(inner|outer)HTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|Function\(|srcdoc|import\("
    assert re.findall(dangers, script) == []
    assert all(f"class {name}" in script for name in ("MarkdownView", "Store", "Server", "Page"))
    assert len(set(SCRIPTS)) == len(SCRIPTS)


def test_what_others_made_is_of_the_versions_in_the_lock_with_its_licence():
    folder = files("jaxinfer.server") / "web" / "vendor"
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    licenses = (folder / "LICENSES.txt").read_text()
    for name in [*(f"{name}.js" for name in VENDORED), "temml.css"]:
        head = (folder / name).read_text().partition("\n")[0]
        package, version, terms = re.findall(r"/\*! (\S+) (\S+), (.+): LICENSES.txt", head)[0]
        entry = locked[f"node_modules/{package}"]
        assert (entry["version"], entry["license"]) == (version, terms)
        assert f"{package}/LICENSE" in licenses


@pytest.mark.slow
def test_what_others_made_is_what_the_lock_s_packages_give():
    root = Path(__file__).parents[2]
    check = [sys.executable, str(root / "scripts" / "vendor"), "--check"]
    assert subprocess.run(check, capture_output=True, text=True, timeout=60).stderr == ""


def test_it_is_open_and_tells_nobody_where_it_came_from():
    locked = ServerSettings(api_keys=(ApiKey("a", "sk-0123456789"),))
    for status in ("ready", "starting", "failed"):
        response = ask(FakeLLM(status=status), "GET", "/", locked)
        assert response.status_code == 200
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in response.headers
    head = ask(FakeLLM(), "HEAD", "/", locked)
    assert (head.status_code, head.content, int(head.headers["content-length"])) == (200, b"", len(PAGE))
    at_home = ServerSettings(allowed_hosts=("localhost",))
    assert ask(FakeLLM(), "GET", "/", at_home, headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("known", ["{}", "W/{}", '"other", {}'])
def test_a_browser_that_has_it_is_told_so(known):
    tag = HEADERS["etag"]
    assert re.fullmatch('"[0-9a-f]{32}"', tag) and HEADERS["cache-control"] == "no-cache"
    response = ask(FakeLLM(), "GET", "/", headers={"if-none-match": known.format(tag)})
    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert ask(FakeLLM(), "GET", "/", headers={"if-none-match": '"other"'}).status_code == 200
