"""scripts/same_steps compares what is computed, and nothing else."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "same_steps"
loader = importlib.machinery.SourceFileLoader("same_steps", str(SCRIPT))
spec = importlib.util.spec_from_loader(loader.name, loader)
assert spec is not None
same_steps: Any = importlib.util.module_from_spec(spec)
sys.modules[loader.name] = same_steps
loader.exec_module(same_steps)


def lines(function: Callable[..., Any], *facts: Any) -> list[str]:
    arguments = jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.float32)
    traced: list[str] = same_steps.lines_of(same_steps.Traced(function, arguments, facts))
    return traced


def scaled(factor: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        return x * factor

    return lambda x, y: inner(x) + y


def renamed(a: jax.Array, b: jax.Array) -> jax.Array:
    @jax.jit
    def another_name(a: jax.Array) -> jax.Array:
        return a * 2.0

    return another_name(a) + b


def test_names_and_source_lines_make_no_difference() -> None:
    assert same_steps.difference(lines(scaled(2.0)), lines(renamed)) is None


@pytest.mark.parametrize(
    ("other", "facts", "shown"),
    [
        (scaled(3.0), (), "3.0"),
        (lambda x, y: scaled(2.0)(y, x), (), "v"),
        (scaled(2.0), ("option",), "option"),
    ],
    ids=["constant", "operands", "option"],
)
def test_what_is_computed_otherwise_is_a_difference(other: Callable[..., Any], facts: tuple[str], shown: str) -> None:
    words = same_steps.difference(lines(scaled(2.0)), lines(other, *facts))
    assert words is not None
    assert shown in words.splitlines()[-1]


def test_a_difference_shows_the_innermost_line() -> None:
    words = same_steps.difference(lines(scaled(2.0)), lines(scaled(3.0)))
    before, after = (f"v1:float32[4] = mul[out_dtype=None] v0, float32[]({x}):float32[]" for x in (2.0, 3.0))
    assert words == f"  line 2\n  - {before}\n  + {after}"


def test_a_program_of_one_side_alone_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    program = lines(scaled(2.0))
    assert same_steps.report({"a": program}, {"a": program}) == 0
    assert capsys.readouterr().out == "1 programs are identical\n"
    assert same_steps.report({"a": program}, {"a": program, "b": program}) == 1
    assert capsys.readouterr().out == "b\n  only after\n1 of 2 programs differ\n"
