"""Random schemas, patterns and grammars, all bounded, and what tells whether a text is of them."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs

Judge = Callable[[str], bool]


def schema(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    """A JSON schema of the kinds that clients send."""
    kinds = ["string", "enum", "const", "integer", "number", "boolean", "null", "pattern"]
    kind = draw.choice(kinds + ["object", "array", "anyOf", "ref"] * 2 if depth else kinds)
    match kind:
        case "string":
            return {"type": "string", "minLength": draw.randrange(2), "maxLength": draw.randrange(2, 9)}
        case "pattern":
            return {"type": "string", "pattern": f"^{pattern(draw, 1)[0]}$"}
        case "enum":
            return {"enum": draw.sample(["red", "x y", 7, None, True, 'q"z', "é"], draw.randint(1, 4))}
        case "const":
            return {"const": draw.choice(["v1", 0, False, [1, "a"], {"k": None}])}
        case "integer":
            low = draw.randrange(-20, 20)
            return {"type": "integer", "minimum": low, "maximum": low + draw.randrange(200)}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": draw.randint(1, 50), "multipleOf": 0.5}
        case "object":
            names = draw.sample(["id", "name", "na me", "b", "é"], draw.randint(1, 3))
            properties = {name: schema(draw, depth - 1) for name in names}
            required = draw.sample(names, draw.randint(0, len(names)))
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        case "array":
            return {"type": "array", "items": schema(draw, depth - 1), "maxItems": draw.randint(1, 3)}
        case "anyOf":
            return {"anyOf": [schema(draw, depth - 1), {"type": "null"}]}
        case "ref":
            return {"$ref": "#/$defs/inner", "$defs": {"inner": schema(draw, 0)}}
    return {"type": kind}


def root_schema(draw: random.Random) -> tuple[dict[str, Any], Judge]:
    """With what `$ref`s mean inside: definitions belong to the root."""
    found = schema(draw)
    definitions = _taken_out(found)
    if definitions:
        found["$defs"] = definitions
    validator = jsonschema_rs.validator_for(found)

    def judge(text: str) -> bool:
        return bool(validator.is_valid(json.loads(text)))

    return found, judge


def _taken_out(node: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
    found = {} if found is None else found
    if isinstance(node, dict):
        if "$ref" in node:
            name = f"d{len(found)}"
            found[name] = node.pop("$defs")["inner"]
            node["$ref"] = f"#/$defs/{name}"
        for value in list(node.values()):
            _taken_out(value, found)
    elif isinstance(node, list):
        for value in node:
            _taken_out(value, found)
    return found


def pattern(draw: random.Random, depth: int = 3) -> tuple[str, Judge]:
    """A regular expression that Python reads alike."""
    text = _pattern(draw, depth)
    return text, lambda answer: re.fullmatch(text, answer) is not None


def _pattern(draw: random.Random, depth: int) -> str:
    atoms = ["a", "bc", "[a-f]", "[^x-z\\n]", "\\.", "0", "[0-9]", "é", " "]
    if not depth:
        return draw.choice(atoms)
    parts = [_pattern(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    match draw.randrange(4):
        case 0:
            return "".join(parts)
        case 1:
            return f"({'|'.join(parts)})"
        case 2:
            return f"({parts[0]})?{''.join(parts[1:])}"
        case _:
            low = draw.randrange(2)
            return f"({parts[0]}){{{low},{low + draw.randint(1, 3)}}}{''.join(parts[1:])}"


def grammar(draw: random.Random) -> tuple[str, Judge]:
    """Lark with rules that name each other, and the pattern that it comes to."""
    lines: list[str] = []

    def rule(depth: int) -> tuple[str, str]:
        parts = [rule(depth - 1) for _ in range(draw.randint(1, 3))] if depth else []
        if not parts:
            text = draw.choice(["x", "let ", "(", "é\n", '"q"', "\\"])
            return json.dumps(text, ensure_ascii=False), re.escape(text)
        names, patterns = [name for name, _ in parts], [f"(?:{body})" for _, body in parts]
        name = f"r{len(lines)}"
        match draw.randrange(3):
            case 0:
                lines.append(f"{name}: {' '.join(names)}")
                return name, "".join(patterns)
            case 1:
                lines.append(f"{name}: {' | '.join(names)}")
                return name, "|".join(patterns)
            case _:
                most = draw.randint(1, 3)
                lines.append(f"{name}: {names[0]}{{0,{most}}} {names[-1]}")
                return name, f"{patterns[0]}{{0,{most}}}{patterns[-1]}"

    start, body = rule(3)
    return "\n".join([f"start: {start}", *lines]), lambda answer: re.fullmatch(body, answer) is not None


def takes(matcher: Any, tokenizer: Any, text: str) -> bool:
    """Whether the tokens of this text are an answer from its beginning to its end."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    matcher = matcher.deep_copy()
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())
