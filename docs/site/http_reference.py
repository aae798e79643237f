"""What the server takes, answers, refuses and measures, as Markdown: of /openapi.json, /metrics and the errors."""

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click
import httpx2
from prometheus_client.parser import text_string_to_metric_families

from docs.site.markdown import mark, plain, table
from jaxinfer import errors as error_classes
from jaxinfer.cli.serve import command as serve
from jaxinfer.config import SETTINGS
from jaxinfer.errors import ApiError
from jaxinfer.protocol.validate import MAX_LOGPROBS
from jaxinfer.server import openapi
from jaxinfer.server.docs import allowed, fields_of, object_in
from jaxinfer.server.openapi import MAX_VOCAB_SIZE, Operation, openapi_document

ROOMS = ("protocol", "server", "text", "llm", "engine", "offline")
CODE_AT = {"end_request": 3, "fault": 0}  # which argument of these is a code without its name
PACKAGE = Path(error_classes.__file__).parent


def http() -> str:
    """Every route, field and status that /openapi.json knows, those that a server has for a flag too."""
    found = (value for value in vars(openapi).values() if isinstance(value, tuple))
    operations = tuple(entry for value in found for entry in value if isinstance(entry, Operation))
    document = openapi_document(MAX_LOGPROBS, MAX_VOCAB_SIZE, has_keys=False, operations=operations)
    schemas = document["components"]["schemas"]
    lines: list[str] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines.append(f"## {method.upper()} {path}\n{plain(operation['summary'])}.\n")
            for media_type, content in operation.get("requestBody", {"content": {}})["content"].items():
                lines.append(f"Takes `{media_type}`, as:\n```json\n{json.dumps(content['example'])}\n```\n")
                lines += _body(_resolved(content["schema"], schemas))
            lines += _answers(operation, schemas)
    return "\n".join(lines)


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return schemas[name] if name else schema


def _body(body: dict[str, Any]) -> Iterator[str]:
    read, ignored, refused = fields_of(body)
    rows = []
    for name in read:
        schema = body["properties"][name]
        needed = ", required" if name in body["required"] else ""
        rows.append([mark(name), plain(allowed(schema) + needed), plain(schema.get("description", ""))])
    yield table(["field", "what it may be", "meaning"], rows)
    for names, what in ((ignored, "Accepted without effect"), (refused, "Refused by name unless it asks for nothing")):
        if names:
            yield f"{what}: {', '.join(map(mark, names))}.\n"


def _answers(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    answered = operation["responses"].get("200", {"content": {}})  # what is absent has no answer
    for media_type, content in answered["content"].items():
        yield f"Answers with `200` and `{media_type}`:\n"
        yield from _tree(content["schema"], schemas, "")
        yield ""
    others = [
        f"`{status}` {answer['description']}" for status, answer in operation["responses"].items() if status != "200"
    ]
    yield f"Or: {'; '.join(others)}.\n"


def _tree(schema: dict[str, Any], schemas: dict[str, Any], indent: str) -> Iterator[str]:
    below = object_in(_resolved(schema, schemas))
    for name, inner in (below["properties"] if below else {}).items():
        yield f"{indent}- {mark(name)} {plain(allowed(inner))}"
        yield from _tree(inner, schemas, indent + "  ")


def metrics() -> str:
    """Every family that a server's /metrics holds."""
    rows = []
    for family in text_string_to_metric_families(_page_of_metrics()):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append([mark(name), family.type, ", ".join(map(mark, labels)), plain(family.documentation)])
    return table(["metric", "type", "labels", "what it is"], rows)


def _page_of_metrics() -> str:
    """Of a dry run, which has them all, once it has answered: what has labels shows them only then."""
    with tempfile.TemporaryDirectory() as folder, _dry_run(Path(folder)) as address:
        ask = {"prompt": "7 plus 5 is", "max_tokens": 2}
        httpx2.post(f"{address}/v1/completions", json=ask, timeout=60).raise_for_status()
        return httpx2.get(f"{address}/metrics", timeout=60).raise_for_status().text


@contextlib.contextmanager
def _dry_run(folder: Path) -> Iterator[str]:
    """The address of a server with every part that is there only once it is given a folder."""
    own = [param for param in serve.params if isinstance(param, click.Option) and param.name not in SETTINGS]
    folders = [
        word for option in own if option.opts[0].endswith("-dir") for word in (option.opts[0], folder / option.opts[0])
    ]
    program = [sys.executable, "-c", "from jaxinfer.cli import main; main()", "serve", "--dry-run", "--in-process"]
    env = os.environ | {"PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{PACKAGE.parent / 'kernels'}"}
    with subprocess.Popen([*program, "--port", "0", *folders], stderr=subprocess.PIPE, text=True, env=env) as server:
        assert server.stderr is not None
        said = ""
        for line in server.stderr:
            said += line
            if line.startswith("try it"):
                break
        found = re.search(r"^listen +(http://\S+)", said, re.MULTILINE)
        try:
            if found is None:
                raise RuntimeError(f"a dry run must start for its metrics to be read, it said: {said}")
            yield found[1]
        finally:
            server.terminate()


def errors() -> str:
    """Every kind of refusal, and every `code` that the server's rooms put into one."""
    kinds = [error for error in vars(error_classes).values() if isinstance(error, type) and issubclass(error, ApiError)]
    what = [[str(error.status), mark(error.type), mark(error.__name__), plain(error.__doc__ or "")] for error in kinds]
    codes: dict[str, set[str]] = {}
    for status, code in _codes({error.__name__: error.status for error in kinds}):
        codes.setdefault(code, set()).update([status] if status else [])
    rows = [[mark(code), ", ".join(sorted(statuses))] for code, statuses in sorted(codes.items())]
    return f"{table(['status', 'type', 'in Python', 'when'], what)}\n## Codes\n{table(['code', 'status'], rows)}"


def _codes(statuses: dict[str, int]) -> Iterator[tuple[str, str]]:
    """(status, code) of each error that the code makes; the status is empty where only the place would tell."""
    texts = [path.read_text() for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]
    telling = re.compile(r'\bcode ?=|"code":|\b(' + "|".join(CODE_AT) + r")\(")
    for text in (text for text in texts if telling.search(text)):  # reading a tree takes long
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):  # Kind(..., code="..."), or wire.py's of broken HTTP
                name = ast.unparse(node.func).rpartition(".")[2]
                status = str(statuses.get(name, ""))
                given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                if node.args and ast.unparse(node.args[0]).startswith("HTTPStatus."):
                    status = str(HTTPStatus[ast.unparse(node.args[0]).partition(".")[2]].value)
                    given = node.args[-1:]
                elif len(node.args) > CODE_AT.get(name, len(node.args)):
                    given = [node.args[CODE_AT[name]]]
                yield from ((status, code) for value in given for code in _texts(value))
            elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["code"]:
                yield from (("", code) for code in _texts(node.value))
            elif isinstance(node, ast.Dict):  # an error as it is written, or a table of statuses
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "code":
                        yield from (("", code) for code in _texts(value))
                    elif isinstance(key, ast.Constant) and isinstance(key.value, int) and key.value >= 400:
                        yield from ((str(key.value), code) for code in _texts(value))


def _texts(value: ast.expr) -> Iterator[str]:
    constants = (node.value for node in ast.walk(value) if isinstance(node, ast.Constant))
    yield from (constant for constant in constants if isinstance(constant, str))
