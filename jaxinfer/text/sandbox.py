"""The Jinja2 environment that chat templates are written for, as transformers sets it up, with limits.

A template comes from a checkpoint, that is, from a stranger: it runs in Jinja2's immutable sandbox, sees plain data
only, stops at a deadline, which is looked at in every turn of a loop and every call of a macro, and its operators make
no huge values. What gets past that (a filter's arguments, say) is found by trial.py before the engine starts.
"""

import datetime
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARS = 16 << 20  # of a rendering, and of any string an operator makes on the way; a million tokens need 5 M
_MAX_POWER_BITS = 1 << 16
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)")


class LimitExceeded(Exception):
    """A template ran too long or made too much."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates. now: the clock that `strftime_now` reads."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime.datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            optimized=False,  # compiling must not compute the template's constants
        )
        self._limits = threading.local()  # the deadline of the rendering that this thread is at
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _Dict()
        del self.globals["lipsum"]  # makes as much text as it is asked for

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """What this thread renders inside may take `seconds` of processor time, then it raises LimitExceeded."""
        self._limits.until = time.thread_time() + seconds
        yield

    def tick(self) -> str:
        """Called by every turn of a loop and every macro."""
        if time.thread_time() > self._limits.until:
            raise LimitExceeded("took too long")
        return ""

    def join(self, *parts: Any) -> str:
        """What `~` does."""
        text = "".join(map(str, parts))
        _check_size(len(text))
        return text

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Operators whose result could be huge."""
        match operator, left, right:
            case "+", str() | list() | tuple(), str() | list() | tuple():
                _check_size(len(left) + len(right))
            case ("*", str() | list() | tuple(), int()) | ("*", int(), str() | list() | tuple()):
                _check_size(left * len(right) if isinstance(left, int) else len(left) * right)
            case "**", int(), int() if left.bit_length() * right > _MAX_POWER_BITS:
                raise LimitExceeded(f"raised a number to the power of {right}")
            case "%", str(), _ if _WIDE_FORMAT.search(left):
                raise LimitExceeded(f"formatted a value with {left[:50]!r}")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _Guards().visit(template)
        return template


class _Guards(NodeTransformer):
    """Puts a tick into every loop and macro, and `ChatEnvironment.join` in the place of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._with_tick(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._with_tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._with_tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _method("join", node.nodes).set_lineno(node.lineno)

    def _with_tick(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_method("tick", [])).set_lineno(node.lineno))
        return node


def _method(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it only renders its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)`, without names that reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace attribute must not start with an underscore, got {name!r}")


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise LimitExceeded(f"made a value of size {size}")


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
