"""Which format a model writes its calls in, read off its chat template, and the parser of each."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args

from jaxinfer.text.tools.bare import JsonCalls, PythonicCalls
from jaxinfer.text.tools.events import Parser
from jaxinfer.text.tools.json_call import JsonCall
from jaxinfer.text.tools.tagged import TaggedCalls
from jaxinfer.text.tools.xml_call import FUNCTION, Parameters, XmlCall

Format = Literal["hermes", "qwen3_coder", "llama3_json", "pythonic"]
FORMATS: tuple[Format, ...] = get_args(Format)


def format_of(template: str) -> Format | None:
    """The format that a chat template teaches; None when it teaches none of ours."""
    if "<function=" in template and "<parameter=" in template:
        return "qwen3_coder"
    if "<tool_call>" in template:
        return "hermes"
    if "func_name1(" in template:  # Llama 4's example, which other pythonic templates repeat
        return "pythonic"
    if "<|python_tag|>" in template or '"parameters": dictionary of argument name' in template:
        return "llama3_json"
    return None


def new_parser(form: Format, schemas: Mapping[str, dict[str, Any]]) -> Parser:
    """schemas: of the parameters of the tools offered, by their names."""
    match form:
        case "hermes":
            return TaggedCalls(lambda opening: JsonCall(opening, schemas))
        case "qwen3_coder":
            parameters_of = cache(lambda name: Parameters(schemas[name]))  # which calls of one tool share
            return TaggedCalls(lambda opening: XmlCall(opening, schemas, parameters_of), bare=FUNCTION)
        case "llama3_json":
            return JsonCalls(schemas)
        case "pythonic":
            return PythonicCalls(schemas)
