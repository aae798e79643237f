"""GET /docs: /openapi.json as a page for people. One answer without scripts, which loads nothing from anywhere.

What it shows comes from that document alone, and every piece of it is escaped.
"""

import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.protocol.schemas import NO_EFFECT, NOT_SUPPORTED, Schema
from jaxinfer.server.html import UTF8, headers, source
from jaxinfer.server.openapi import document_for

_STYLE = files("jaxinfer.server").joinpath("docs.css").read_text()
HEADERS = headers(f"default-src 'none'; style-src {source(_STYLE)}; base-uri 'none'; form-action 'none'")
_WORDS = {"string": "text", "boolean": "true or false", "null": "null", "object": "object"}


async def docs(request: Request) -> Response:
    """Answers in every status, like the document."""
    return Response("".join(page(document_for(request))), headers=HEADERS, media_type=UTF8)


def page(document: dict[str, Any]) -> Iterator[str]:
    """The document as HTML."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}: the API</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
    yield '<p class="quiet">Clients of OpenAI and vLLM work as they are, with this server&rsquo;s address and <code>/v1'
    yield "</code> as their base URL. A field that is null counts as left out; unknown fields are named in the answer"
    yield '&rsquo;s <code>x-jaxinfer-warnings</code>. For programs: <a href="openapi.json">openapi.json</a>.</p>'
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from _operation(path, method, operation, schemas)
    yield "</body></html>\n"


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Schema]) -> Iterator[str]:
    yield f'<details id="{method}-{escape(path)}"><summary><span class="method">{method.upper()}</span> '
    yield f'<h2><code>{escape(path)}</code></h2> <span class="quiet">{escape(operation["summary"])}</span></summary>'
    yield f"<pre>{escape(_curl(path, method, operation))}</pre>"
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        yield from _fields(_resolved(content["schema"], schemas))
    yield "<h3>Answers</h3>"
    for status, response in operation["responses"].items():
        if status == "200":
            for media_type, content in response["content"].items():
                yield f"<p><code>200</code> {escape(response['description'])}, <code>{media_type}</code></p>"
                yield _tree(content["schema"], schemas)
        else:
            yield f"<p><code>{status}</code> {escape(response['description'])}</p>"
    yield "</details>"


def _curl(path: str, method: str, operation: dict[str, Any]) -> str:
    key = " -H 'Authorization: Bearer KEY'" if "security" in operation else ""
    call = f"curl{key} http://HOST:PORT{path}"
    if "requestBody" not in operation:
        return call if method == "get" else call.replace("curl", f"curl -X {method.upper()}", 1)
    ((media, content),) = operation["requestBody"]["content"].items()
    if media == "multipart/form-data":
        return " ".join([call, *(f"-F {name}={value}" for name, value in content["example"].items())])
    example = json.dumps(content["example"])
    return f"{call} \\\n  -H 'Content-Type: application/json' -d '{example}'"


def fields_of(body: Schema) -> tuple[list[str], list[str], list[str]]:
    """The fields that are carried out, the required ones first; that have no effect; that are refused by name."""
    read: list[str] = []
    ignored: list[str] = []
    refused: list[str] = []
    for name in sorted(body["properties"]):
        described = body["properties"][name].get("description", "")
        group = refused if described.startswith(NOT_SUPPORTED) else ignored if described == NO_EFFECT else read
        group.append(name)
    return sorted(read, key=lambda name: name not in body["required"]), ignored, refused


def _fields(body: Schema) -> Iterator[str]:
    """A table of what is carried out, and the names of the rest."""
    read, ignored, refused = fields_of(body)
    yield '<h3>Fields</h3><div class="scroll"><table><tr><th>name</th><th>what it may be</th><th>meaning</th></tr>'
    for name in read:
        schema = body["properties"][name]
        needed = ", required" if name in body["required"] else ""
        yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(allowed(schema) + needed)}</td>"
        yield f"<td>{escape(schema.get('description', ''))}</td></tr>"
    yield "</table></div>"
    for names, what in (
        (ignored, "Accepted without effect"),
        (refused, "Known, and refused by name unless it asks for nothing"),
    ):
        if names:
            listed = ", ".join(f"<code>{escape(name)}</code>" for name in names)
            yield f'<p class="quiet">{what}: {listed}</p>'


def _tree(schema: Schema, schemas: dict[str, Schema]) -> str:
    """An answer's fields, those of objects below them."""
    below = object_in(_resolved(schema, schemas))
    if below is None:
        return ""
    rows = (
        f"<li><code>{escape(name)}</code> {escape(allowed(inner))}{_tree(inner, schemas)}</li>"
        for name, inner in below["properties"].items()
    )
    return f"<ul>{''.join(rows)}</ul>"


def object_in(schema: Schema) -> Schema | None:
    """The object that a schema is, or holds a list of, if it names that object's fields."""
    inner = [schema, schema.get("items", {}), *schema.get("anyOf", ())]
    return next((found for found in inner if "properties" in found), None)


def allowed(schema: Schema) -> str:
    """What a value may be, in a few words; null goes without saying."""
    if "anyOf" in schema:
        kinds = [allowed(inner) for inner in schema["anyOf"] if inner.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(json.dumps(value) for value in values if value is not None or len(values) == 1)
    if isinstance(schema.get("type"), list):
        return " or ".join(allowed({**schema, "type": kind}) for kind in schema["type"] if kind != "null")
    if schema.get("type") == "array":
        most = f" of at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list{most}, each {allowed(schema['items'])}"
    if schema.get("type") in ("integer", "number"):
        return str(schema.get("description") or _range(schema))
    return _WORDS.get(schema.get("type", ""), "anything")


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is None:
        return str(schema["type"])
    return f"{schema['type']} from {low} to {high}"


def _resolved(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    name = schema.get("$ref", "").rpartition("/")[2]
    return schemas[name] if name else schema
