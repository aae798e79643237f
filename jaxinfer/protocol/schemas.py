"""JSON Schemas of request bodies, made from the wire types, the field tables and the validator's ranges.

Rules between fields and what fits into a context are not in them. A null is the same as leaving a field out.
"""

from typing import Any

import msgspec

from jaxinfer.protocol.abort import REFUSED as ABORT_REFUSED
from jaxinfer.protocol.abort import AbortWire
from jaxinfer.protocol.anthropic import MAX_TOKENS as MESSAGES_MAX_TOKENS
from jaxinfer.protocol.anthropic import MESSAGES_REFUSED, CountTokensWire, MessagesIgnored, MessagesWire
from jaxinfer.protocol.anthropic_blocks import DIALECT as ANTHROPIC
from jaxinfer.protocol.batches import BATCH_REFUSED, FILE_UPLOAD, BatchWire
from jaxinfer.protocol.chat import CHAT_REFUSED, ChatWire
from jaxinfer.protocol.completions import COMPLETION_REFUSED, MAX_PROMPTS, CompletionWire
from jaxinfer.protocol.embeddings import EMBEDDING_REFUSED, MAX_INPUTS, SCORE_REFUSED, EmbeddingWire, ScoreWire
from jaxinfer.protocol.fields import LEAVE_OUT, NO_LIMIT, SAMPLING_FIELDS, Ignored, Refusal
from jaxinfer.protocol.meanings import MEANINGS
from jaxinfer.protocol.messages import CHAT, MAX_MESSAGES, Dialect
from jaxinfer.protocol.ollama import CHAT_REFUSED as OLLAMA_REFUSED
from jaxinfer.protocol.ollama import DIALECT as OLLAMA
from jaxinfer.protocol.ollama import (
    GENERATE_REFUSED,
    GenerateWire,
    OldEmbedWire,
    OllamaChatWire,
    OllamaEmbedWire,
    ShowIgnored,
    ShowWire,
)
from jaxinfer.protocol.open_responses import RESPONSE_REFUSED, ResponseWire
from jaxinfer.protocol.response_items import DIALECT as RESPONSES
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.session import SESSION_ID
from jaxinfer.protocol.structured import MAX_CHOICES, MAX_TAGS, OTHER_NAMES, STRUCTURED
from jaxinfer.protocol.tokenize import REFUSED as TOKENIZE_REFUSED
from jaxinfer.protocol.tokenize import DetokenizeWire, TokenizeWire
from jaxinfer.protocol.tools import ALLOWED, CHOICES, MAX_TOOL_NAME_CHARS, MODES, TOOL_NAME_CHAR
from jaxinfer.protocol.truncation import TO_FIT
from jaxinfer.protocol.validate import (
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    NUMBERS,
    SALT_CHAR,
    Range,
)

Schema = dict[str, Any]

NO_EFFECT, NOT_SUPPORTED = "accepted without effect", "not supported; "  # how the descriptions of such fields begin
_NOTHING: Schema = {"enum": [None], "description": NOT_SUPPORTED + LEAVE_OUT}
_TEXT: Schema = {"type": "string", "minLength": 1}
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_BAD_WORD: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD_CHARS}
_OTHERS = ("assistant", "tool", "function")
_CALL: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "arguments": {"anyOf": [{"type": "string"}, {"type": "object"}]},
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_TOOL_NAME: Schema = {"type": "string", "pattern": f"^{TOOL_NAME_CHAR}+$", "maxLength": MAX_TOOL_NAME_CHARS}
_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": _TOOL_NAME,
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"], "description": "a JSON schema of type object"},
                "strict": {
                    "type": ["boolean", "null"],
                    "description": "arguments are of the schema, or the request is refused",
                },
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
_FUNCTION: dict[str, Schema] = _TOOL["properties"]["function"]["properties"]
_FLAT_TOOL: Schema = {  # of /v1/responses
    "type": "object",
    "properties": {"type": {"const": "function"}, **_FUNCTION},
    "required": ["type", "name"],
}
_ANTHROPIC_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["custom", None]},
        **{name: schema for name, schema in _FUNCTION.items() if name != "parameters"},
        "input_schema": _FUNCTION["parameters"] | {"type": "object"},
    },
    "required": ["name", "input_schema"],
}
_ANTHROPIC_CHOICE: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["auto", "any", "tool", "none"]},
        "name": {"anyOf": [_TOOL_NAME, {"type": "null"}], "description": "of the tool, with type tool"},
        "disable_parallel_tool_use": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["type"],
}
_ANTHROPIC_FORMAT: Schema = {
    "type": "object",
    "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
    "required": ["type", "schema"],
}
_NAMED: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": _TOOL_NAME}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_FLAT_NAMED: Schema = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": _TOOL_NAME},
    "required": ["type", "name"],
}


def _some_of(named: Schema) -> Schema:
    """Which tools may be called. named: how one is named."""
    tools = {"type": "array", "items": named, "minItems": 1}
    return {"type": "object", "properties": {"mode": {"enum": [*MODES]}, "tools": tools}, "required": ["mode", "tools"]}


_ALLOWED: Schema = {
    "type": "object",
    "properties": {"type": {"const": ALLOWED}, ALLOWED: _some_of(_NAMED)},
    "required": ["type", ALLOWED],
}
_FLAT_ALLOWED: Schema = _some_of(_FLAT_NAMED)
_FLAT_ALLOWED["properties"]["type"] = {"const": ALLOWED}
_FLAT_ALLOWED["required"].append("type")
_EITHER: Schema = {
    "oneOf": [
        {"properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}, "required": ["prompt"]},
        {
            "properties": {
                "messages": {"type": "array"},
                "prompt": {"type": "null"},
                "add_special_tokens": {"enum": [False, None]},
            },
            "required": ["messages"],
        },
    ]
}


_THOUGHTS: Schema = {  # an item of /v1/responses
    "type": "object",
    "properties": {
        "type": {"const": "reasoning"},
        "content": {
            "type": ["array", "null"],
            "items": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    },
    "required": ["type"],
}
_CALL_ITEM: Schema = {  # the same
    "type": "object",
    "properties": {
        "type": {"const": "function_call"},
        "call_id": {"type": "string", "minLength": 1},
        "name": {"type": "string", "minLength": 1},
        "arguments": {"type": "string"},
    },
    "required": ["type", "call_id", "name", "arguments"],
}
_CALL_BLOCK: Schema = {  # of Anthropic's
    "type": "object",
    "properties": {
        "type": {"const": "tool_use"},
        "id": {"type": "string", "minLength": 1},
        "name": {"type": "string", "minLength": 1},
        "input": {"type": "object"},
    },
    "required": ["type", "id", "name", "input"],
}
_THINKING_BLOCK: Schema = {  # of Anthropic's
    "type": "object",
    "properties": {"type": {"const": "thinking"}, "thinking": {"type": "string"}},
    "required": ["type", "thinking"],
}


def _content(dialect: Dialect, *others: Schema) -> Schema:
    part: Schema = {
        "type": "object",
        "properties": {"type": {"enum": list(dialect.text_parts)}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }
    parts = {"anyOf": [part, *others]} if others else part
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": parts}]}


def _thinking() -> Schema:
    """Anthropic's field."""
    budget = {"anyOf": [_of_range(NUMBERS["thinking_token_budget"]), {"type": "null"}]}
    properties = {"type": {"enum": ["enabled", "adaptive", "disabled"]}, "budget_tokens": budget}
    return {"type": "object", "properties": properties, "required": ["type"]}


def _result_item() -> Schema:
    """What a call of /v1/responses has brought."""
    properties = {
        "type": {"const": "function_call_output"},
        "call_id": {"type": "string"},
        "output": _content(RESPONSES),
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _result_block() -> Schema:
    """The same of Anthropic's."""
    properties = {
        "type": {"const": "tool_result"},
        "tool_use_id": {"type": "string"},
        "content": _or_null(_content(ANTHROPIC)),
        "is_error": _or_null({"type": "boolean"}),
    }
    return {"type": "object", "properties": properties, "required": ["type", "tool_use_id"]}


def _messages(dialect: Dialect) -> Schema:
    content = _content(dialect)
    kind: Schema = {"type": {"enum": ["message", None]}} if dialect is RESPONSES else {}
    others = {"role": {"enum": [role for role in dialect.roles if role not in _OTHERS]}, "content": content}
    thoughts = [_THINKING_BLOCK, _CALL_BLOCK] if dialect is ANTHROPIC else []
    own = {"role": {"const": "assistant"}, "content": _or_null(_content(dialect, *thoughts))}
    tools: list[Schema] = [_THOUGHTS, _CALL_ITEM, _result_item()] if dialect is RESPONSES else []
    if dialect is ANTHROPIC:
        answered = {"role": {"const": "user"}, "content": _content(dialect, _result_block())}
        tools = [{"type": "object", "properties": answered, "required": ["role", "content"]}]
    if "tool" in dialect.roles:
        own["tool_calls"] = {"type": "array", "items": _CALL}
        result = {"role": {"const": "tool"}, "content": content, "tool_call_id": {"type": "string"}}
        older = {"role": {"const": "function"}, "name": _TEXT, "content": _or_null(content)}
        tools = [
            {"type": "object", "properties": result, "required": ["role", "content", "tool_call_id"]},
            {"type": "object", "properties": older, "required": ["role", "name", "content"]},
        ]
    message: Schema = {
        "anyOf": [
            *tools,
            {"type": "object", "properties": kind | others, "required": ["role", "content"]},
            {"type": "object", "properties": kind | own, "required": ["role"]},
        ]
    }
    return {"type": "array", "items": message, "minItems": 1, "maxItems": MAX_MESSAGES}


def _forms() -> dict[str, Schema]:
    """What an answer must be, under all its names."""
    schema: Schema = {"anyOf": [{"type": "object"}, {"type": "string", "minLength": 2}, {"const": True}]}
    text: Schema = {"type": "string", "minLength": 1}
    choice: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_CHOICES}
    tag: Schema = {
        "type": "object",
        "properties": {"begin": text, "schema": {"type": "object"}, "end": {"type": "string"}},
        "required": ["begin", "schema", "end"],
    }
    tags: Schema = {
        "type": "object",
        "properties": {
            "structures": {"type": "array", "items": tag, "minItems": 1, "maxItems": MAX_TAGS},
            "triggers": {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_TAGS},
        },
        "required": ["structures", "triggers"],
    }
    kinds = {"json_schema": schema, "regex": text, "choice": choice, "grammar": text, "structural_tag": tags}
    form: Schema = {
        "type": "object",
        "properties": {"type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]}},
        "required": ["type"],
    }
    inner = {"json": schema, **{name: kind for name, kind in kinds.items() if name != "json_schema"}}
    outputs: Schema = {"type": "object", "properties": {**inner, "json_object": {"type": "boolean"}}}
    others = {name: kinds[kind] for name, kind in OTHER_NAMES.items()}
    whole = {"response_format": form, "structured_outputs": outputs, "guided_json_object": {"type": "boolean"}}
    return {**kinds, **others, **whole}


def _texts(ids: Schema, most: int) -> Schema:
    lists = ({"type": "array", "items": items, "minItems": 1, "maxItems": most} for items in (_TEXT, ids))
    return {"anyOf": [_TEXT, ids, *lists]}


def _by_name(vocab_size: int) -> dict[str, Schema]:
    """What the types cannot say."""
    ids: Schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1},
        "minItems": 1,
    }
    return {
        "messages": _messages(CHAT),
        "input": {"anyOf": [{"type": "string"}, _messages(RESPONSES)]},
        "system": _content(ANTHROPIC),
        "thinking": _thinking(),
        "max_output_tokens": {"anyOf": [_of_range(NUMBERS["max_tokens"]), {"const": NO_LIMIT}]},
        "prompt": _texts(ids, MAX_PROMPTS),
        **dict.fromkeys(("text_1", "text_2"), _texts(ids, MAX_INPUTS // 2)),
        "dimensions": {"type": "integer", "minimum": 1},
        "tools": {"type": "array", "items": _TOOL},
        "tool_choice": {"anyOf": [{"enum": [*CHOICES]}, _NAMED, _ALLOWED]},
        **_forms(),
        "tokens": ids | {"minItems": 0},
        "cache_salt": {"type": "string", "pattern": f"^{SALT_CHAR}+$", "maxLength": MAX_SALT_CHARS},
        "session_id": {"type": "string", "pattern": f"^{SESSION_ID.pattern}$"},
        "truncate_prompt_tokens": {"anyOf": [{"const": TO_FIT}, {"type": "integer", "minimum": 1}]},
        "best_of": {"type": "integer"},
        "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOP_STRINGS}]},
        "stop_sequences": {"type": "array", "items": _STOP, "maxItems": MAX_STOP_STRINGS},
        "stop_token_ids": ids | {"minItems": 0, "maxItems": MAX_STOP_TOKEN_IDS},
        "allowed_token_ids": ids,
        "bad_words": {"type": "array", "items": _BAD_WORD, "maxItems": MAX_BAD_WORDS},
        "logit_bias": {
            "type": "object",
            "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": MAX_LOGIT_BIAS,
        },
    }


def request_schemas(max_logprobs: int, vocab_size: int) -> dict[str, Schema]:
    """The schema of each route's body, by a name for it. vocab_size: the logits' width."""
    count = Range(0, max_logprobs, f"an integer from 0 to {max_logprobs}", integer=True)
    counts = dict.fromkeys(("logprobs", "prompt_logprobs", "top_logprobs"), _of_range(count))
    known = _by_name(vocab_size) | counts
    sampling = {name: _field(SamplingParams, name, known) for name in sorted(SAMPLING_FIELDS)}
    sampling |= {name: known[name] for name in sorted(STRUCTURED)} | {"max_tokens": known["max_output_tokens"]}
    chat = known | {"logprobs": {"type": "boolean"}, "max_completion_tokens": known["max_output_tokens"]}
    anthropic = known | {"messages": _messages(ANTHROPIC), "tool_choice": _ANTHROPIC_CHOICE}
    anthropic["tools"] = {"type": "array", "items": _ANTHROPIC_TOOL}
    anthropic["output_format"] = _ANTHROPIC_FORMAT
    anthropic["output_config"] = {"type": "object", "properties": {"format": _or_null(_ANTHROPIC_FORMAT)}}
    responses = known | {"tool_choice": {"anyOf": [{"enum": [*CHOICES]}, _FLAT_NAMED, _FLAT_ALLOWED]}}
    responses["tools"] = {"type": "array", "items": _FLAT_TOOL}
    inputs = _texts(known["tokens"] | {"minItems": 1}, MAX_INPUTS) | {"description": "text or token ids, one or a list"}
    embedding = known | {"input": inputs}
    tokenize = known | {"prompt": {"type": "string"}}
    template = known | {"prompt": _NOTHING}
    return {
        "ChatCompletionRequest": _body(ChatWire, chat, CHAT_REFUSED, sampling, required=["messages"]),
        "CompletionRequest": _body(CompletionWire, known, COMPLETION_REFUSED, sampling, required=["prompt"]),
        "ResponseRequest": _body(ResponseWire, responses, RESPONSE_REFUSED, sampling, required=["input"]),
        "MessageRequest": _body(
            MessagesWire,
            anthropic,
            MESSAGES_REFUSED,
            sampling | {"max_tokens": _of_range(MESSAGES_MAX_TOKENS)},
            required=["messages", "max_tokens"],
            ignored=MessagesIgnored,
        ),
        "CountTokensRequest": _body(
            CountTokensWire, anthropic, MESSAGES_REFUSED, {}, required=["messages"], ignored=MessagesIgnored
        ),
        "EmbeddingRequest": _body(EmbeddingWire, embedding, EMBEDDING_REFUSED, {}, required=["input"]),
        "ScoreRequest": _body(ScoreWire, known, SCORE_REFUSED, {}, required=["text_1", "text_2"]),
        **_ollama(known, inputs),
        "TokenizeRequest": _body(TokenizeWire, tokenize, TOKENIZE_REFUSED, {}, required=[]) | _EITHER,
        "ApplyTemplateRequest": _body(TokenizeWire, template, TOKENIZE_REFUSED, {}, required=["messages"]),
        "DetokenizeRequest": _body(DetokenizeWire, known, {}, {}, required=["tokens"]),
        "AbortRequest": _body(AbortWire, {}, ABORT_REFUSED, {}, required=["request_id"]),
        "BatchRequest": _body(
            BatchWire,
            known,
            BATCH_REFUSED,
            {},
            required=["input_file_id", "endpoint", "completion_window"],
            ignored=None,
        ),
        "FileUpload": FILE_UPLOAD,
    }


def _ollama(known: dict[str, Schema], inputs: Schema) -> dict[str, Schema]:
    """Of Ollama's API, whose fields of one name differ in type from other APIs'."""
    form: Schema = {"anyOf": [{"enum": ["json", ""]}, {"type": "object"}]}
    think: Schema = {"enum": [True, False, "low", "medium", "high", "max"]}
    fields: dict[str, Schema] = {"format": form, "think": think, "model": {"type": "string"}}
    chat = fields | {"messages": _messages(OLLAMA), "tools": {"type": "array", "items": _TOOL}}
    text: dict[str, Schema] = {"prompt": {"type": "string"}}
    kept: dict[str, Any] = {"ignored": None}
    return {
        "OllamaChatRequest": _body(OllamaChatWire, chat, OLLAMA_REFUSED, {}, required=[], **kept),
        "GenerateRequest": _body(GenerateWire, fields | text, GENERATE_REFUSED, {}, required=[], **kept),
        "OllamaEmbedRequest": _body(OllamaEmbedWire, known | {"input": inputs}, {}, {}, required=["input"], **kept),
        "OldEmbedRequest": _body(
            OldEmbedWire, known | {"prompt": {"type": "string", "minLength": 1}}, {}, {}, required=["prompt"], **kept
        ),
        "ShowRequest": _body(ShowWire, fields, {}, {}, required=[], ignored=ShowIgnored)
        | {"anyOf": [{"required": ["model"]}, {"required": ["name"]}]},
    }


def _body(
    wire: type[msgspec.Struct],
    known: dict[str, Schema],
    refused: dict[str, Refusal],
    sampling: dict[str, Schema],
    *,
    required: list[str],
    ignored: type[msgspec.Struct] | None = Ignored,
) -> Schema:
    """A route's own fields win over what a table says for all routes; unknown ones are accepted with a warning."""
    wired = {field.name: _field(wire, field.name, known) for field in msgspec.structs.fields(wire)}
    others = () if ignored is None else msgspec.structs.fields(ignored)
    without_effect = {field.name: _inlined(msgspec.json.schema(field.type)) for field in others}
    neutral = {name: _of_refusal(refusal) for name, refusal in refused.items() if name not in wired}
    properties = {**without_effect, **sampling, **neutral, **wired}
    nullable = {name: _or_null(schema) if name not in required else schema for name, schema in properties.items()}
    for name in wired.keys() | sampling.keys():
        nullable[name] = {"description": MEANINGS[name]} | nullable[name]
    for name in without_effect.keys() - wired.keys() - sampling.keys() - neutral.keys():
        nullable[name] = {"description": NO_EFFECT, **without_effect[name]}
    return {"type": "object", "properties": nullable, "required": required, "additionalProperties": True}


def _field(struct: type[msgspec.Struct], name: str, known: dict[str, Schema]) -> Schema:
    """By name where the types cannot say it, else by the validator's range, else by the type."""
    if name in known:
        return known[name]
    if name in NUMBERS:
        return _of_range(NUMBERS[name])
    (field,) = [field for field in msgspec.structs.fields(struct) if field.name == name]
    return _inlined(msgspec.json.schema(field.type))


def _of_range(allowed: Range) -> Schema:
    kind = "integer" if allowed.integer else "number"
    return {"type": kind, "minimum": allowed.low, "maximum": allowed.high, "description": allowed.law}


def _of_refusal(refusal: Refusal) -> Schema:
    return {"enum": [*refusal.neutral, None], "description": NOT_SUPPORTED + refusal.cure}


def _or_null(schema: Schema) -> Schema:
    says_null = not schema.keys() - {"description"} or None in schema.get("enum", ())
    return schema if says_null else {"anyOf": [schema, {"type": "null"}]}


def _inlined(schema: Schema) -> Schema:
    """A schema without $defs; ours are one level deep."""
    definitions = schema.pop("$defs", {})

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            name = value.get("$ref", "").rpartition("/")[2]
            return walk(definitions[name]) if name else {key: walk(inner) for key, inner in value.items()}
        return [walk(inner) for inner in value] if isinstance(value, list) else value

    walked: Schema = walk(schema)
    return walked
