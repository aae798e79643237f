"""Schemas as clients send them: what pydantic, openai and msgspec make of types, and tools as people write them."""

import datetime
import enum
import itertools
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import openai
import pydantic
from pydantic import Field

from tests.support.schemas.case import Case, Schema
from tests.support.schemas.tools import TOOLS


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(pydantic.BaseModel):
    """Where somebody lives."""

    street: str
    zip_code: Annotated[str, Field(pattern=r"^\d{5}$")]
    country: str = "DE"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str


class Person(pydantic.BaseModel):
    """Knows others of its kind."""

    name: str
    friends: list["Person"] = []


class Plain(msgspec.Struct):
    name: str
    size: int = 0


class Tagged(msgspec.Struct, tag=True):
    size: Annotated[int, msgspec.Meta(gt=0)]


class Other(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    words: list[str]


class Kind(NamedTuple):
    """A field's type with values of it and values that are none."""

    type: Any
    valid: tuple[Any, ...]
    invalid: tuple[Any, ...]


HOME = {"street": "Main St 1", "zip_code": "12345", "country": "FR"}
CAT, DOG = {"kind": "cat", "lives": 9}, {"kind": "dog", "name": "Rex"}
ANNA = {"name": "Anna", "friends": [{"name": "Ben", "friends": []}]}
KINDS = {
    "text": Kind(str, ("", "a b", "é"), (1, None)),
    "whole": Kind(int, (0, -5, 123), ("1", 1.5)),
    "real": Kind(float, (0.5, -2, 1e22), ("1", None)),
    "flag": Kind(bool, (True, False, True), (1, "true")),
    "colour": Kind(Colour, ("red", "blue", "red"), ("green", 1)),
    "word": Kind(Literal["yes", "no", "maybe"], ("yes", "no", "maybe"), ("y", None)),
    "level": Kind(Literal[1, 2, 3], (1, 2, 3), (4, "1")),
    "day": Kind(datetime.date, ("2024-02-29", "1999-12-31", "2030-01-01"), ("2024-13-01", "today")),
    "moment": Kind(datetime.datetime, ("2024-02-29T12:30:00Z", "1999-12-31T23:59:59+01:00") * 2, ("2024-02-29", 7)),
    "clock": Kind(datetime.time, ("12:30:00Z", "23:59:59Z", "00:00:00Z"), ("25:00:00Z", 1)),
    "span": Kind(datetime.timedelta, ("P1D", "PT5M", "P1DT1H"), ("1 day", 5)),
    "key": Kind(uuid.UUID, tuple(f"{part}-e89b-12d3-a456-426614174000" for part in ("123e4567", "0" * 8, "f" * 8)),
                ("123e4567", 1)),
    "link": Kind(pydantic.HttpUrl, ("https://a.b/c", "http://x.org", "https://q.de/?a=b"), ("", 3)),
    "share": Kind(Annotated[float, Field(ge=0, le=1)], (0, 0.5, 1), (1.5, -0.1)),
    "age": Kind(Annotated[int, Field(gt=0, lt=150)], (1, 42, 149), (0, 150)),
    "code": Kind(Annotated[str, Field(pattern=r"^[A-Z]{3}$")], ("ABC", "XYZ", "QQQ"), ("abc", "ABCD")),
    "short": Kind(Annotated[str, Field(min_length=1, max_length=5)], ("a", "abc", "abcde"), ("", "abcdef")),
    "few": Kind(Annotated[list[int], Field(min_length=1, max_length=3)], ([1], [1, 2], [1, 2, 3]), ([], [1] * 4)),
    "either": Kind(int | str, (1, "1", -3), (None, 1.5)),
    "pair": Kind(tuple[int, str], ([1, "a"], [0, ""], [-1, "é"]), ([1], ["a", 1])),
    "counts": Kind(dict[str, int], ({}, {"a": 1}, {"b c": 2, "d": -3}), ({"a": "1"}, [])),
    "anything": Kind(Any, (None, {"a": []}, 1.5), ()),
    "home": Kind(Address, (HOME, HOME | {"street": ""}, HOME | {"country": "é"}),
                 ({"street": "a"}, HOME | {"zip_code": "1"})),
    "pet": Kind(Annotated[Cat | Dog, Field(discriminator="kind")], (CAT, DOG, CAT | {"lives": 0}),
                ({"kind": "cow"}, CAT | {"lives": 10})),
    "animal": Kind(Cat | Dog, (CAT, DOG, DOG | {"name": ""}), ({"kind": "cat", "name": "x"}, {"kind": "dog"})),
    "person": Kind(Person, (ANNA, {"name": "", "friends": []}, {"name": "C", "friends": [ANNA]}),
                   ({"friends": []}, {"name": "a", "friends": [1]})),
}  # fmt: skip
NO_STRICT_TOOL = {"counts", "anything", "pair"}  # what OpenAI's strict tools cannot say: maps, anything and tuples


def client_cases() -> list[Case]:
    cases = [*_models(), *_bundles(), *_structs(), *_tools()]
    return [case._replace(client=True) for case in cases]


def _models() -> Iterator[Case]:
    """One field in all the ways that a model has it; open as response_format, closed as a strict tool."""
    for name, kind in KINDS.items():
        first = kind.valid[0]
        plain = pydantic.create_model(f"Has{name.title()}", **{name: (kind.type, ...), "note": (str, "")})
        full = tuple({name: value, "note": "n" * number} for number, value in enumerate(kind.valid))
        wrong = (*[{name: value, "note": "n"} for value in kind.invalid], {"note": "n"}, {name: first, "note": 5})
        yield Case("a model's field", plain.model_json_schema(), (*full, {name: first}), wrong)
        several = pydantic.create_model(f"Many{name.title()}", **{"items": (list[kind.type], Field(description="all"))})
        lists = tuple({"items": values} for values in ([], list(kind.valid), [first]))
        wrong_lists = (*[{"items": [first, value]} for value in kind.invalid], {}, {"items": {}})
        yield Case("a model's list", several.model_json_schema(), lists, wrong_lists)
        maybe = pydantic.create_model(f"May{name.title()}", **{name: (kind.type | None, None), "last": (bool, ...)})
        some = tuple({name: value, "last": True} for value in (*kind.valid, None))
        wrong_some = (*[{name: value, "last": True} for value in kind.invalid if value is not None], {name: first}, [])
        yield Case("a model's optional field", maybe.model_json_schema(), (*some, {"last": False}), wrong_some)
        inner = pydantic.create_model(f"Outer{name.title()}", **{"inner": (plain, ...), "rows": (list[plain], [])})
        nested = tuple({"inner": one, "rows": [one, full[0]]} for one in full)
        wrong_nested = tuple({"inner": one, "rows": []} for one in wrong) + ({"inner": full[0], "rows": [7]},)
        yield Case("a model in a model", inner.model_json_schema(), nested, wrong_nested)
        if name not in NO_STRICT_TOOL:
            yield Case("a strict tool", _parameters(plain), full, (*wrong, *[one | {"more": 1} for one in full[:1]]))
            yield Case("a strict tool", _parameters(inner), nested, (*wrong_nested, {"inner": full[0]}))
            yield Case("a strict tool", _parameters(maybe), some, (*wrong_some, {"last": False}))


def _bundles() -> Iterator[Case]:
    """Models of three fields: each of a kind, one of them with a default."""
    names = sorted(KINDS)
    for number, (one, two, three) in enumerate(itertools.islice(itertools.combinations(names, 3), 0, None, 61)):
        fields = {one: (KINDS[one].type, ...), two: (KINDS[two].type, ...), three: (KINDS[three].type | None, None)}
        model = pydantic.create_model(f"Bundle{number}", __doc__="Several things.", **fields)
        full = [{name: KINDS[name].valid[i] for name in (one, two, three)} for i in range(3)]
        wrong = [full[0] | {name: value} for name in (one, two) for value in KINDS[name].invalid]
        partly = {one: full[0][one], two: full[0][two]}
        yield Case("a bundle", model.model_json_schema(), (*full, partly), (*wrong, {two: full[0][two]}, {}))


def _structs() -> Iterator[Case]:
    for kind, valid, wrong in [
        (Plain, ({"name": "a"}, {"name": "", "size": 3}, {"name": "b", "size": 0}), ({}, {"name": 1})),
        (list[Plain], ([], [{"name": "a"}], [{"name": "a", "size": 1}] * 2), ({}, [{}], [1])),
        (Tagged | Other, ({"type": "Tagged", "size": 1}, {"type": "Other", "words": []}, {"type": "Tagged", "size": 9}),
         ({"type": "Tagged", "size": 0}, {"type": "Other", "words": [1]}, {"type": "None"})),
        (dict[str, Plain], ({}, {"a": {"name": "b"}}, {"": {"name": "", "size": 1}}), ({"a": {}}, [])),
        (Plain | None, (None, {"name": "a"}, {"name": "b", "size": 1}), (1, {})),
        (tuple[int, str, bool], ([1, "a", True], [0, "", False], [-1, "é", True]), ([1, "a"], ["a", 1, True])),
        (Annotated[str, msgspec.Meta(pattern="^a+$", max_length=4)], ("a", "aa", "aaaa"), ("", "b")),
    ]:  # fmt: skip
        yield Case("a struct", msgspec.json.schema(kind), valid, wrong)


def _tools() -> Iterator[Case]:
    for name, (parameters, valid, wrong) in TOOLS.items():
        yield Case(f"the tool {name}", parameters, valid, wrong)


def _parameters(model: type[pydantic.BaseModel]) -> Schema:
    tool = openai.pydantic_function_tool(model)["function"]
    return dict(tool["parameters"])
