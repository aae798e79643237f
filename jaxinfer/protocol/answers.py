"""JSON Schemas of answers. Bodies are made by hand (responses.py), so these are too; tests hold one to the other.

Every field named is always there unless `may` says otherwise; more may come with a later version.
"""

from typing import Any

Schema = dict[str, Any]

_INTEGER: Schema = {"type": "integer", "minimum": 0}
_STRING: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_FORMS: Schema = {"enum": ["text", "json_object", "json_schema", "structural_tag"]}
_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}


def _object(fields: dict[str, Schema], may: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "required": list(fields), "properties": fields | (may or {})}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TOKEN: dict[str, Schema] = {
    "token": _STRING,
    "logprob": {"type": "number"},
    "bytes": _list({"type": "integer", "minimum": 0, "maximum": 255}),
}
_CHAT_LOGPROBS = _object({"content": _list(_object(_TOKEN | {"top_logprobs": _list(_object(_TOKEN))}))})
_COMPLETION_LOGPROBS = _object(
    {
        "tokens": _list(_STRING),
        "token_logprobs": _list(_NUMBER_OR_NULL),
        "top_logprobs": _list(_or_null({"type": "object", "additionalProperties": _NUMBER_OR_NULL})),
        "text_offset": _list(_INTEGER),
    }
)
_BY_ID = _object({"logprob": _NUMBER_OR_NULL, "rank": {"type": ["integer", "null"]}, "decoded_token": _STRING})
_PROMPT_LOGPROBS: dict[str, Schema] = {
    "prompt_logprobs": _list(_or_null({"type": "object", "additionalProperties": _BY_ID}))
}
_END: dict[str, Schema] = {
    "finish_reason": {"enum": ["stop", "length", "tool_calls", "abort"]},
    "stop_reason": {"type": ["string", "integer", "null"]},
}
_CALL = _object(
    {"id": _STRING, "type": {"const": "function"}, "function": _object({"name": _STRING, "arguments": _STRING})}
)
_CHAT_CHOICE = _object(
    {
        "index": _INTEGER,
        "message": _object(
            {"role": {"const": "assistant"}, "content": _TEXT_OR_NULL, "refusal": {"type": "null"}},
            {"reasoning": _STRING, "reasoning_content": _STRING, "tool_calls": _list(_CALL)},
        ),
        "logprobs": _or_null(_CHAT_LOGPROBS),
    }
    | _END
)
_COMPLETION_CHOICE = _object(
    {"index": _INTEGER, "text": _STRING, "logprobs": _or_null(_COMPLETION_LOGPROBS)} | _END, _PROMPT_LOGPROBS
)
_USAGE = _object(
    {name: _INTEGER for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    | {"prompt_tokens_details": _object({"cached_tokens": _INTEGER})},
    {"completion_tokens_details": _object({"reasoning_tokens": _INTEGER})},
)


_METRICS: dict[str, Schema] = {
    "metrics": _object(
        dict.fromkeys(
            (
                "prepare_time_ms",
                "queue_time_ms",
                "prefill_time_ms",
                "time_to_first_token_ms",
                "generation_time_ms",
                "mean_itl_ms",
                "total_time_ms",
                "tokens_per_second",
            ),
            _NUMBER_OR_NULL,
        )
        | {"preemptions": {"type": ["integer", "null"]}}
    )
}


def _answer(kind: str, choice: Schema, may: dict[str, Schema]) -> Schema:
    head: dict[str, Schema] = {"id": _STRING, "object": {"const": kind}, "created": _INTEGER, "model": _STRING}
    return _object(head | {"system_fingerprint": _STRING, "choices": _list(choice), "usage": _USAGE}, may)


def _list_of(item: dict[str, Schema]) -> Schema:
    return _object(
        {"id": _STRING, "object": {"const": "list"}, "created": _INTEGER, "model": _STRING}
        | {"data": _list(_object({"index": _INTEGER} | item)), "usage": _USAGE}
    )


_MODEL = _object(
    {
        "id": _STRING,
        "object": {"const": "model"},
        "created": _INTEGER,
        "owned_by": _STRING,
        "root": _STRING,
        "parent": {"type": "null"},
        "max_model_len": _INTEGER,
        "max_context_length": _INTEGER,
        "meta": {"type": "object", "additionalProperties": _INTEGER},
        "permission": _list({"type": "object"}),
        "default_sampling_params": {"type": "object", "additionalProperties": _NUMBER_OR_NULL},
    },
    {"note": _STRING},
)

_START: dict[str, Schema] = {
    "start": _object(
        {"stage": {"enum": ["load", "compile", "run", "read", "wait"]}, "done": _INTEGER, "total": _INTEGER}
    )
}
_SESSION = _object(
    {"id": _STRING, "object": {"const": "session"}, "created": _INTEGER, "status": {"enum": ["idle", "busy"]}}
    | {"turns": _INTEGER, "tokens": _INTEGER, "pages": _INTEGER, "host_pages": _INTEGER, "idle_s": {"type": "number"}}
)
_TEXT_PART = _object(
    {
        "type": {"const": "output_text"},
        "text": _STRING,
        "annotations": _list({"type": "object"}),
        "logprobs": _list(_object(_TOKEN | {"top_logprobs": _list(_object(_TOKEN))})),
    }
)
_ITEM_STATUS: Schema = {"enum": ["completed", "incomplete"]}
_OUTPUT: Schema = {
    "anyOf": [
        _object(
            {"id": _STRING, "type": {"const": "message"}, "status": _ITEM_STATUS, "role": {"const": "assistant"}}
            | {"content": _list(_TEXT_PART)}
        ),
        _object(
            {
                "id": _STRING,
                "type": {"const": "reasoning"},
                "status": _ITEM_STATUS,
                "summary": _list({"type": "object"}),
            }
            | {"content": _list(_object({"type": {"const": "reasoning_text"}, "text": _STRING}))}
        ),
        _object(
            {"id": _STRING, "type": {"const": "function_call"}, "status": _ITEM_STATUS}
            | dict.fromkeys(("call_id", "name", "arguments"), _STRING)
        ),
    ]
}
_RESPONSE_USAGE = _object(
    {name: _INTEGER for name in ("input_tokens", "output_tokens", "total_tokens")}
    | {
        "input_tokens_details": _object({"cached_tokens": _INTEGER, "cache_write_tokens": _INTEGER}),
        "output_tokens_details": _object({"reasoning_tokens": _INTEGER}),
    }
)
_NUMBER: Schema = {"type": "number"}
_RESPONSE = _object(
    {
        "id": _STRING,
        "object": {"const": "response"},
        "created_at": _INTEGER,
        "completed_at": {"type": ["integer", "null"]},
        "status": {"enum": ["completed", "incomplete", "cancelled"]},
        "model": _STRING,
        "output": _list(_OUTPUT),
        "usage": _RESPONSE_USAGE,
        "error": {"type": "null"},
        "incomplete_details": _or_null(_object({"reason": _STRING})),
        "instructions": _TEXT_OR_NULL,
        "previous_response_id": _TEXT_OR_NULL,
        "store": {"type": "boolean"},
        "metadata": {"type": "object", "additionalProperties": _STRING},
        "user": _TEXT_OR_NULL,
        "safety_identifier": _TEXT_OR_NULL,
        "prompt_cache_key": _TEXT_OR_NULL,
        "max_output_tokens": {"type": ["integer", "null"]},
        "top_logprobs": _INTEGER,
        "temperature": _NUMBER,
        "top_p": _NUMBER,
        "presence_penalty": _NUMBER,
        "frequency_penalty": _NUMBER,
        "tools": _list(
            _object(
                {"type": {"const": "function"}, "name": _STRING, "description": _TEXT_OR_NULL}
                | {"parameters": {"type": ["object", "null"]}, "strict": {"type": "boolean"}}
            )
        ),
        "tool_choice": {
            "anyOf": [
                {"enum": ["auto", "none", "required"]},
                _object({"type": {"const": "function"}, "name": _STRING}),
                _object({"type": {"const": "allowed_tools"}, "mode": _STRING, "tools": _list({"type": "object"})}),
            ]
        },
        "parallel_tool_calls": {"type": "boolean"},
        "max_tool_calls": {"type": "null"},
        "truncation": {"enum": ["auto", "disabled"]},
        "background": {"const": False},
        "service_tier": {"const": "default"},
        "text": _object({"format": _object({"type": _FORMS})}),
        "reasoning": _object({"effort": _TEXT_OR_NULL, "summary": {"type": "null"}}),
    }
)
_BLOCK: Schema = {
    "anyOf": [
        _object({"type": {"const": "text"}, "text": _STRING}),
        _object({"type": {"const": "thinking"}, "thinking": _STRING, "signature": _STRING}),
        _object({"type": {"const": "tool_use"}, "id": _STRING, "name": _STRING, "input": {"type": "object"}}),
    ]
}
_STOPPED = ("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded")
_MESSAGE = _object(
    {
        "id": _STRING,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": _STRING,
        "content": _list(_BLOCK),
        "stop_reason": {"enum": [*_STOPPED, None]},
        "stop_sequence": _TEXT_OR_NULL,
        "usage": _object(
            dict.fromkeys(
                ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"), _INTEGER
            )
        ),
    }
)

_FILE = _object(
    {
        "id": _STRING,
        "object": {"const": "file"},
        **dict.fromkeys(("bytes", "created_at", "expires_at"), _INTEGER),
        "filename": _STRING,
        "purpose": {"enum": ["batch", "batch_output"]},
        "status": {"const": "processed"},
        "status_details": {"type": "null"},
    }
)
_FAULT = _object(
    {"code": _STRING, "message": _STRING, "param": _TEXT_OR_NULL, "line": {"type": ["integer", "null"]}},
)
_BATCH_ENDS = ("completed", "failed", "expired", "cancelled")
_BATCH_STATUSES = ("in_progress", "finalizing", "cancelling", *_BATCH_ENDS)
_BATCH = _object(
    {
        "id": _STRING,
        "object": {"const": "batch"},
        "endpoint": _STRING,
        "errors": _or_null(_object({"object": {"const": "list"}, "data": _list(_FAULT)})),
        "input_file_id": _STRING,
        "completion_window": _STRING,
        "status": {"enum": ["validating", *_BATCH_STATUSES]},
        "output_file_id": _TEXT_OR_NULL,
        "error_file_id": _TEXT_OR_NULL,
        **dict.fromkeys(("created_at", "expires_at"), _INTEGER),
        **{f"{name}_at": {"type": ["integer", "null"]} for name in _BATCH_STATUSES},
        "request_counts": _object(dict.fromkeys(("total", "completed", "failed"), _INTEGER)),
        "metadata": {"type": "object", "additionalProperties": _STRING},
    }
)


def _page_of(item: Schema) -> Schema:
    ends = {"first_id": _TEXT_OR_NULL, "last_id": _TEXT_OR_NULL, "has_more": {"type": "boolean"}}
    return _object({"object": {"const": "list"}, "data": _list(item)} | ends)


_OLLAMA_HEAD: dict[str, Schema] = {"model": _STRING, "created_at": _STRING, "done": {"type": "boolean"}}
_OLLAMA_END: dict[str, Schema] = {
    "done_reason": {"enum": ["stop", "length", "abort", "load"]},
    **{name: _INTEGER for name in ("prompt_eval_count", "eval_count", "total_duration", "load_duration")},
    **{name: _INTEGER for name in ("prompt_eval_duration", "eval_duration")},
}
_OLLAMA_CALL = _object({"id": _STRING, "function": _object({"name": _STRING, "arguments": {"type": "object"}})})
_OLLAMA_SAID: dict[str, Schema] = {"thinking": _STRING, "tool_calls": _list(_OLLAMA_CALL)}
_OLLAMA_LOGPROBS: dict[str, Schema] = {"logprobs": _list(_object(_TOKEN | {"top_logprobs": _list(_object(_TOKEN))}))}
_OLLAMA_MESSAGE = _object({"role": {"const": "assistant"}, "content": _STRING}, _OLLAMA_SAID)
_DETAILS = _object(
    {
        **{name: _STRING for name in ("parent_model", "format", "family", "parameter_size", "quantization_level")},
        "families": _list(_STRING),
    }
)
_LISTED: dict[str, Schema] = {name: _STRING for name in ("name", "model", "modified_at", "digest")}
_LISTED |= {"size": _INTEGER, "details": _DETAILS}
_OLLAMA: dict[str, Schema] = {
    "OllamaError": _object({"error": _STRING}),
    "OllamaChat": _object(_OLLAMA_HEAD | {"message": _OLLAMA_MESSAGE}, _OLLAMA_END | _OLLAMA_LOGPROBS),
    "Generated": _object(_OLLAMA_HEAD | {"response": _STRING}, _OLLAMA_END | _OLLAMA_LOGPROBS | _OLLAMA_SAID),
    "OllamaEmbeddings": _object(
        {"model": _STRING, "embeddings": _list(_list({"type": "number"}))},
        {name: _INTEGER for name in ("total_duration", "load_duration", "prompt_eval_count")},
    ),
    "OldEmbedding": _object({"embedding": _list({"type": "number"})}),
    "OllamaModels": _object({"models": _list(_object(_LISTED, {"context_length": _INTEGER}))}),
    "OllamaModel": _object(
        {
            **{name: _STRING for name in ("modelfile", "parameters", "template", "modified_at")},
            "details": _DETAILS,
            "model_info": {"type": "object"},
            "capabilities": _list(_STRING),
        },
        {"note": _STRING},
    ),
}

ANSWERS: dict[str, Schema] = {
    "File": _FILE,
    "Files": _page_of(_FILE),
    "FileDeleted": _object({"id": _STRING, "object": {"const": "file"}, "deleted": {"const": True}}),
    "Batch": _BATCH,
    "Batches": _page_of(_BATCH),
    "Response": _RESPONSE,
    "DeletedResponse": _object({"id": _STRING, "object": {"const": "response"}, "deleted": {"const": True}}),
    "Message": _MESSAGE,
    "TokenCount": _object({"input_tokens": _INTEGER}),
    "InputTokenCount": _object({"object": {"const": "response.input_tokens"}, "input_tokens": _INTEGER}),
    "ChatCompletion": _answer("chat.completion", _CHAT_CHOICE, _PROMPT_LOGPROBS | _METRICS),
    "Completion": _answer("text_completion", _COMPLETION_CHOICE, _METRICS),
    "Embeddings": _list_of(
        {"object": {"const": "embedding"}, "embedding": {"anyOf": [_list({"type": "number"}), _STRING]}}
    ),
    "Scores": _list_of({"object": {"const": "score"}, "score": {"type": "number", "minimum": -1, "maximum": 1}}),
    "Models": _object({"object": {"const": "list"}, "data": _list(_MODEL)}),
    "Model": _MODEL,
    **_OLLAMA,
    "Props": _object(
        {
            "default_generation_settings": _object({"n_ctx": _INTEGER, "params": {"type": "object"}}),
            "total_slots": _INTEGER,
            "model_path": _STRING,
            "model_alias": _STRING,
            "chat_template": _STRING,
            "modalities": {"type": "object"},
            "build_info": _STRING,
        }
    ),
    "Sessions": _object({"object": {"const": "list"}, "data": _list(_SESSION)}),
    "Session": _SESSION,
    "SessionDeleted": _object({"id": _STRING, "object": {"const": "session"}, "deleted": {"const": True}}),
    "Tokens": _object(
        {
            "count": _INTEGER,
            "max_model_len": _INTEGER,
            "tokens": _list(_INTEGER),
            "token_strs": _or_null(_list(_STRING)),
        }
    ),
    "Prompt": _object({"prompt": _STRING}),
    "Aborted": _object({"aborted": _INTEGER}),
    "Load": _object(
        {"server_load": _INTEGER}, dict.fromkeys(("pages_owned", "pages_cached", "pages_total"), _INTEGER) | _START
    ),
    "Status": _object({"status": {"enum": ["ok", "ready", "live"]}}),
    "Version": _object({"version": _STRING}),
    "Document": _object({"openapi": _STRING, "info": {"type": "object"}, "paths": {"type": "object"}}),
    "Profile": _object({"profile": _STRING}),
    "Error": _object(
        {"error": _object({"message": _STRING, "type": _STRING, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL})}
    ),
    "AnthropicError": _object(
        {
            "type": {"const": "error"},
            "error": _object({"type": _STRING, "message": _STRING}),
            "request_id": _TEXT_OR_NULL,
        }
    ),
}
