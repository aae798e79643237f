"""Tools' parameters as people write them by hand: described, partly required, seldom closed."""

from typing import Any

from tests.support.schemas.case import Schema, closed

Tool = tuple[Schema, tuple[Any, ...], tuple[Any, ...]]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}


def _open(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _said(text: str, schema: Schema = TEXT) -> Schema:
    return schema | {"description": text}


TOOLS: dict[str, Tool] = {
    "get_weather": (
        _open(
            {"location": _said("City, e.g. Paris"), "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "location",
        ),
        ({"location": "Paris"}, {"location": "", "unit": "celsius"}, {"location": "a", "unit": "fahrenheit"}),
        ({}, {"location": "Paris", "unit": "kelvin"}, {"unit": "celsius"}),
    ),
    "search": (
        _open(
            {
                "query": TEXT,
                "top_k": WHOLE | {"minimum": 1, "maximum": 50, "default": 10},
                "filters": _open({"year": WHOLE, "tags": {"type": "array", "items": TEXT}}),
            },
            "query",
        ),
        (
            {"query": "q"},
            {"query": "q", "top_k": 50},
            {"query": "q", "top_k": 1, "filters": {"year": 2024, "tags": ["a"]}},
        ),
        ({"top_k": 3}, {"query": "q", "top_k": 51}, {"query": "q", "filters": {"tags": "a"}}),
    ),
    "send_email": (
        closed(
            {
                "to": {"type": "array", "items": {"type": "string", "format": "email"}, "minItems": 1},
                "subject": TEXT,
                "body": _said("Plain text."),
                "urgent": {"type": "boolean"},
            },
            "to",
            "subject",
        ),
        (
            {"to": ["a@b.de"], "subject": "s"},
            {"to": ["a@b.de", "c@d.org"], "subject": "", "body": "b"},
            {"to": ["a@b.de"], "subject": "s", "urgent": True},
        ),
        ({"to": [], "subject": "s"}, {"to": ["nobody"], "subject": "s"}, {"to": ["a@b.de"], "subject": "s", "cc": []}),
    ),
    "create_event": (
        closed(
            {
                "title": TEXT | {"minLength": 1},
                "start": {"type": "string", "format": "date-time"},
                "minutes": WHOLE | {"exclusiveMinimum": 0},
                "room": {"type": ["string", "null"]},
            },
            "title",
            "start",
        ),
        (
            {"title": "t", "start": "2024-01-02T03:04:05Z"},
            {"title": "t", "start": "2024-01-02T03:04:05Z", "minutes": 1},
            {"title": "t", "start": "2024-01-02T03:04:05Z", "minutes": 30, "room": None},
        ),
        ({"title": "", "start": "2024-01-02T03:04:05Z"}, {"title": "t", "start": "soon"}, {"title": "t"}),
    ),
    "list_all": (
        {"type": "object", "properties": {}},
        ({}, {"a": 1}, {"a": [None]}),
        ([], "now", None),
    ),
    "add": (
        _open({"a": {"type": "number"}, "b": {"type": "number"}}, "a", "b"),
        ({"a": 1, "b": 2.5}, {"a": -1, "b": 0}, {"a": 1e22, "b": 0.5}),
        ({"a": 1}, {"a": "1", "b": 2}, {"b": 2}),
    ),
    "query_table": (
        closed(
            {
                "table": {"type": "string", "pattern": "^[a-z_]+$"},
                "columns": {"type": "array", "items": TEXT},
                "where": {"type": "array", "items": {"$ref": "#/$defs/Condition"}},
                "limit": WHOLE | {"minimum": 1},
            },
            "table",
            "columns",
            **{
                "$defs": {
                    "Condition": closed(
                        {
                            "column": TEXT,
                            "op": {"enum": ["=", "<", ">", "in"]},
                            "value": {"anyOf": [TEXT, {"type": "number"}, {"type": "array"}]},
                        }
                    )
                }
            },
        ),
        (
            {"table": "t", "columns": []},
            {"table": "a_b", "columns": ["x"], "limit": 1},
            {"table": "t", "columns": ["x"], "where": [{"column": "x", "op": "in", "value": [1, 2]}]},
        ),
        (
            {"table": "T", "columns": []},
            {"table": "t"},
            {"table": "t", "columns": [], "limit": 0},
            {"table": "t", "columns": [], "where": [{"column": "x", "op": "~", "value": 1}]},
        ),
    ),
    "edit_file": (
        closed(
            {
                "path": TEXT,
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "oneOf": [
                            closed({"action": {"const": "insert"}, "line": WHOLE, "text": TEXT}),
                            closed({"action": {"const": "delete"}, "from": WHOLE, "to": WHOLE}),
                        ]
                    },
                },
            }
        ),
        (
            {"path": "a", "edits": [{"action": "insert", "line": 1, "text": "x\ny"}]},
            {"path": "a", "edits": [{"action": "delete", "from": 1, "to": 2}]},
            {
                "path": "",
                "edits": [{"action": "delete", "from": 1, "to": 2}, {"action": "insert", "line": 0, "text": ""}],
            },
        ),
        ({"path": "a", "edits": []}, {"path": "a", "edits": [{"action": "insert", "from": 1, "to": 2}]}, {"path": "a"}),
    ),
    "plan": (
        closed(
            {"goal": TEXT, "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "maxItems": 8}},
            **{
                "$defs": {
                    "Step": closed({"do": TEXT, "then": {"type": "array", "items": {"$ref": "#/$defs/Step"}}}, "do")
                }
            },
        ),
        (
            {"goal": "g", "steps": []},
            {"goal": "g", "steps": [{"do": "a", "then": [{"do": "b"}]}]},
            {"goal": "", "steps": [{"do": "a"}] * 8},
        ),
        ({"goal": "g", "steps": [{"then": []}]}, {"goal": "g", "steps": [{"do": "a"}] * 9}, {"steps": []}),
    ),
    "set_thermostat": (
        closed(
            {"degrees": {"type": "number", "minimum": 5, "maximum": 30, "multipleOf": 0.5}, "mode": {"const": "heat"}}
        ),
        ({"degrees": 5, "mode": "heat"}, {"degrees": 21.5, "mode": "heat"}, {"degrees": 30, "mode": "heat"}),
        ({"degrees": 4.5, "mode": "heat"}, {"degrees": 21.3, "mode": "heat"}, {"degrees": 20, "mode": "cool"}),
    ),
    "draw": (
        closed(
            {
                "shapes": {
                    "type": "array",
                    "items": {
                        "type": "array",
                        "minItems": 2,
                        "maxItems": 2,
                        "items": {"type": "number", "minimum": 0, "maximum": 1},
                    },
                },
                "colour": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
            }
        ),
        (
            {"shapes": [[0, 1], [0.5, 0.25]], "colour": "#00ff00"},
            {"shapes": [], "colour": "#123456"},
            {"shapes": [[1, 1]], "colour": "#abcdef"},
        ),
        (
            {"shapes": [[0]], "colour": "#00ff00"},
            {"shapes": [[0, 2]], "colour": "#00ff00"},
            {"shapes": [], "colour": "red"},
        ),
    ),
    "translate": (
        _open(
            {
                "text": TEXT,
                "to": {"type": "string", "enum": ["de", "fr", "zh-Hans", "pt-BR"]},
                "glossary": {"type": "object", "additionalProperties": TEXT},
            },
            "text",
            "to",
        ),
        (
            {"text": "a", "to": "de"},
            {"text": "", "to": "zh-Hans", "glossary": {}},
            {"text": "a", "to": "fr", "glossary": {"a b": "c"}},
        ),
        ({"text": "a", "to": "d"}, {"text": "a"}, {"text": "a", "to": "fr", "glossary": {"a": 1}}),
    ),
}
