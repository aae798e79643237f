"""/docs: a page that says what /openapi.json says, to people, and that nothing can turn into more than text."""

import base64
import hashlib
import re
from html import escape

from jaxinfer.server.docs import page
from jaxinfer.server.openapi import openapi_document
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import INFO, FakeLLM
from tests.server.http import ask, error_of


def test_the_page_loads_nothing_and_runs_nothing():
    response = ask(FakeLLM(), "GET", "/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    (style,) = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy and "//" not in policy
    assert re.findall(r"(?:src|href|action)=[^ >]*", response.text) == ['href="openapi.json"']
    assert not re.search(r"<script|<link|<img|<iframe|style=|\bon\w+=|@import|url\(", response.text)
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_page_names_every_route_field_status_and_answer():
    document = ask(FakeLLM(), "GET", "/openapi.json").json()
    text = ask(FakeLLM(), "GET", "/docs").text
    sections = dict(re.findall(r'<details id="([^"]+)">(.*?)</details>', text, re.DOTALL))
    operations = {
        f"{method}-{path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert sections.keys() == operations.keys()
    schemas = document["components"]["schemas"]
    for name, operation in operations.items():
        named = set(re.findall(r"<code>([^<]+)</code>", sections[name]))
        assert operation["responses"].keys() <= named
        content = operation.get("requestBody", {}).get("content", {}).values()
        answers = operation["responses"].get("200", {"content": {}})["content"].values()
        for schema in (found["schema"] for found in (*content, *answers)):
            fields = schemas[schema["$ref"].rpartition("/")[2]]["properties"] if "$ref" in schema else {}
            assert fields.keys() <= named
    assert "an integer from 1 to 16" in sections["post-/v1/chat/completions"]


def test_each_example_is_a_body_that_the_server_takes():
    document = openapi_document(20, 256, has_keys=False, model=INFO.served_names[0])
    for path, methods in document["paths"].items():
        if "requestBody" in methods.get("post", {}):
            example = methods["post"]["requestBody"]["content"]["application/json"]["example"]
            assert ask(FakeLLM(), "POST", path, json=example).status_code == 200


def test_what_the_document_holds_is_text_on_the_page():
    document = openapi_document(20, 256, has_keys=False)
    bad = "<script>alert(1)</script>\"'&"
    document["info"]["title"] = bad
    operation = document["paths"].pop("/tokenize")["post"]
    operation["summary"] = operation["responses"]["200"]["description"] = bad
    operation["requestBody"]["content"]["application/json"]["example"] = {"prompt": bad}
    document["paths"][bad] = {"post": operation}
    document["components"]["schemas"]["TokenizeRequest"]["properties"][bad] = {"enum": [bad], "description": bad}
    text = "".join(page(document))
    assert "<script" not in text and "\"'" not in text
    assert text.count(escape(bad)) >= 6


def test_a_key_guards_the_page_like_any_other_path():
    locked = ServerSettings(api_keys=(ApiKey("a", "sk-0123456789"),))
    response = ask(FakeLLM(), "GET", "/docs", locked)
    assert (response.status_code, error_of(response)["code"]) == (401, "invalid_api_key")
    opened = ask(FakeLLM(status="starting"), "GET", "/docs", locked, headers={"authorization": "Bearer sk-0123456789"})
    assert opened.status_code == 200 and "Bearer KEY" in opened.text
