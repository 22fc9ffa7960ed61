"""Schemas as users of pydantic, zod, OpenAI's tools and JSON Schema's drafts have them, and how
each is followed: by an automaton, by masks, or not at all.

`EVERYDAY` maps a name to (schema, way). The schemas of pydantic are made by pydantic itself.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import uuid
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

AUTOMATON, MASK, REFUSED = "automaton", "mask", "refused"


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Address(Closed):
    street: str
    city: str
    zip_code: Annotated[str, Field(pattern=r"^\d{5}(-\d{4})?$")]
    country: Literal["US", "CA"] = "US"


class Person(Closed):
    """Somebody."""

    name: str = Field(min_length=1, max_length=40, description="in full")
    age: int | None = Field(default=None, ge=0, le=130)
    email: str | None = None
    address: Address
    tags: list[str] = []
    favourite: Color = Color.RED


class Cat(Closed):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(Closed):
    kind: Literal["dog"]
    weight: float = Field(gt=0, lt=100)


class Line(Closed):
    sku: Annotated[str, Field(pattern="^[A-Z]{3}-[0-9]{4}$")]
    count: int = Field(gt=0)
    price: float = Field(ge=0)


class Invoice(Closed):
    number: str
    date: datetime.date
    lines: list[Line] = Field(min_length=1, max_length=5)
    total: float
    currency: Literal["EUR", "USD", "GBP"]
    paid: bool


class Step(Closed):
    explanation: str
    output: str


class Reasoning(Closed):
    steps: list[Step]
    final_answer: str


class Node(Closed):
    value: int
    children: list[Node] = []


class Open(BaseModel):
    name: str
    age: int


class Review(Closed):
    sentiment: Literal["positive", "negative", "neutral"]
    score: float = Field(ge=0, le=1)
    reasons: list[Annotated[str, Field(max_length=30)]] = Field(max_length=3)


# What a field may be, by its annotation: all within an object of this one field.
FIELDS: dict[str, tuple[Any, str]] = {
    "text": (str, AUTOMATON),
    "short text": (Annotated[str, Field(max_length=50)], AUTOMATON),
    "long text": (Annotated[str, Field(max_length=2000)], MASK),
    "whole": (int, AUTOMATON),
    "positive": (pydantic.PositiveInt, AUTOMATON),
    "not negative": (pydantic.NonNegativeInt, AUTOMATON),
    "negative": (pydantic.NegativeInt, AUTOMATON),
    "year": (Annotated[int, Field(ge=1900, le=2100)], AUTOMATON),
    "temperature": (Annotated[int, Field(ge=-90, le=60)], AUTOMATON),
    "even": (Annotated[int, Field(multiple_of=2)], AUTOMATON),
    "fraction": (float, AUTOMATON),
    "probability": (Annotated[float, Field(ge=0, le=1)], AUTOMATON),
    "open probability": (Annotated[float, Field(gt=0, lt=1)], AUTOMATON),
    "latitude": (Annotated[float, Field(ge=-90, le=90)], AUTOMATON),
    "rating": (Annotated[float, Field(ge=0.5, le=5)], AUTOMATON),
    "positive fraction": (pydantic.PositiveFloat, AUTOMATON),
    "decimal": (decimal.Decimal, AUTOMATON),
    "yes or no": (bool, AUTOMATON),
    "none": (None, AUTOMATON),
    "optional": (str | None, AUTOMATON),
    "optional whole": (int | None, AUTOMATON),
    "either": (int | str, AUTOMATON),
    "literal": (Literal["a", "b"], AUTOMATON),
    "literal numbers": (Literal[1, 2, 3], AUTOMATON),
    "mixed literal": (Literal["a", 1, True, None], AUTOMATON),
    "one literal": (Literal["only"], AUTOMATON),
    "enumeration": (Color, AUTOMATON),
    "whole enumeration": (Level, AUTOMATON),
    "foreign words": (Literal["Straße", "名前", "a b"], AUTOMATON),
    "date": (datetime.date, AUTOMATON),
    "moment": (datetime.datetime, AUTOMATON),
    "time": (datetime.time, AUTOMATON),
    "span": (datetime.timedelta, AUTOMATON),
    "uuid": (uuid.UUID, AUTOMATON),
    "ipv4": (ipaddress.IPv4Address, AUTOMATON),
    "ipv6": (ipaddress.IPv6Address, AUTOMATON),
    "url": (pydantic.AnyUrl, AUTOMATON),
    "path": (pydantic.FilePath, AUTOMATON),  # a format that JSON Schema does not define
    "secret": (pydantic.SecretStr, AUTOMATON),
    "code": (Annotated[str, Field(pattern="^[A-Z]{2}[0-9]+$")], AUTOMATON),
    "slug": (Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")], AUTOMATON),
    "phone": (Annotated[str, Field(pattern=r"^\+?[1-9]\d{6,14}$")], AUTOMATON),
    "name": (Annotated[str, Field(pattern=r"^\w+( \w+)*$")], AUTOMATON),
    "pattern with length": (Annotated[str, Field(pattern="^[a-z]+$", max_length=9)], AUTOMATON),
    "piece": (Annotated[str, Field(pattern="ing$")], AUTOMATON),
    "letters of Unicode": (Annotated[str, Field(pattern=r"^\p{L}+$")], AUTOMATON),
    "list": (list[str], AUTOMATON),
    "list of whole": (list[int], AUTOMATON),
    "bounded list": (Annotated[list[int], Field(min_length=2, max_length=4)], AUTOMATON),
    "nested list": (list[list[float]], AUTOMATON),
    "matrix": (
        Annotated[
            list[Annotated[list[int], Field(min_length=3, max_length=3)]],
            Field(min_length=3, max_length=3),
        ],
        AUTOMATON,
    ),
    "set": (set[str], REFUSED),
    "pair": (tuple[str, int], AUTOMATON),
    "tuple of any length": (tuple[int, ...], AUTOMATON),
    "record": (dict[str, int], AUTOMATON),
    "record of lists": (dict[str, list[str]], AUTOMATON),
    "record of objects": (dict[str, Cat], AUTOMATON),
    "record by enumeration": (dict[Color, int], AUTOMATON),
    "record by pattern": (dict[Annotated[str, Field(pattern="^[a-z]{1,8}$")], float], AUTOMATON),
    "filled record": (Annotated[dict[str, str], Field(min_length=1)], AUTOMATON),
    "anything": (Any, MASK),
    "open record": (dict[str, Any], MASK),
    "any list": (list[Any], MASK),
    "unsaid object": (Open, AUTOMATON),
    "object": (Address, AUTOMATON),
    "optional object": (Address | None, AUTOMATON),
    "objects": (list[Address], AUTOMATON),
    "union": (Cat | Dog, AUTOMATON),
    "discriminated": (Annotated[Cat | Dog, Field(discriminator="kind")], AUTOMATON),
    "discriminated list": (
        list[Annotated[Cat | Dog, Field(discriminator="kind")]],
        AUTOMATON,
    ),
    "tree": (Node, MASK),
    "base64": (pydantic.Base64Str, AUTOMATON),
    "json in text": (pydantic.Json[int], AUTOMATON),
}
MODELS: dict[str, tuple[type[BaseModel], str]] = {
    model.__name__: (model, way)
    for model, way in (
        *((Address, AUTOMATON), (Person, AUTOMATON), (Cat, AUTOMATON), (Dog, AUTOMATON)),
        *((Line, AUTOMATON), (Invoice, AUTOMATON), (Step, AUTOMATON), (Reasoning, AUTOMATON)),
        *((Node, MASK), (Open, AUTOMATON), (Review, AUTOMATON)),
    )
}


def strict(**properties: Any) -> dict[str, Any]:
    """As OpenAI's strict tools want it: all required, none beside."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT, WHOLE, YES = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
DRAFT_7, DRAFT_4 = (f"http://json-schema.org/draft-0{n}/schema#" for n in (7, 4))
LATEST = "https://json-schema.org/draft/2020-12/schema"
SAFE = {"minimum": -(2**53) + 1, "maximum": 2**53 - 1}  # as zod 4 bounds whole numbers
CALL = strict(name={"const": "search"}, arguments=strict(query=TEXT, limit=WHOLE))
OTHER_CALL = strict(name={"const": "stop"}, arguments=strict())
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "tool: weather": (
        strict(
            location={"type": "string", "description": "city and country"},
            unit={"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]},
        ),
        AUTOMATON,
    ),
    "tool: e-mail": (
        strict(to={"type": "array", "items": {"type": "string", "format": "email"}}, body=TEXT),
        AUTOMATON,
    ),
    "tool: not strict": (
        {"type": "object", "properties": {"city": TEXT}, "required": ["city"]},
        AUTOMATON,
    ),
    "tool: no arguments": (strict(), AUTOMATON),
    "tool: one of several": ({"anyOf": [CALL, OTHER_CALL]}, AUTOMATON),
    "tool: calls": ({"type": "array", "items": {"oneOf": [CALL, OTHER_CALL]}}, AUTOMATON),
    "tool: references": (
        {**strict(a={"$ref": "#/$defs/A"}, b={"$ref": "#/$defs/A"}), "$defs": {"A": CALL}},
        AUTOMATON,
    ),
    "extraction": (
        strict(
            people={"type": "array", "items": strict(name=TEXT, role=TEXT)},
            places={"type": "array", "items": TEXT, "maxItems": 5},
            date={"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        ),
        AUTOMATON,
    ),
    "classification": (strict(label={"enum": [f"class {i}" for i in range(60)]}), AUTOMATON),
    "judge": (
        strict(reason=TEXT, score={"type": "integer", "minimum": 1, "maximum": 5}),
        AUTOMATON,
    ),
    "zod: object": (
        {"$schema": LATEST, **strict(name=TEXT, age={"type": "integer", **SAFE})},
        AUTOMATON,
    ),
    "zod: record": (
        {"type": "object", "propertyNames": TEXT, "additionalProperties": {"type": "number"}},
        AUTOMATON,
    ),
    "zod: record by enumeration": (
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "additionalProperties": YES,
            "required": ["a", "b"],
        },
        AUTOMATON,
    ),
    "zod: tuple": ({"type": "array", "prefixItems": [TEXT, WHOLE]}, AUTOMATON),
    "zod: tuple of draft 7": (
        {"$schema": DRAFT_7, "type": "array", "minItems": 2, "maxItems": 2, "items": [TEXT, WHOLE]},
        AUTOMATON,
    ),
    "zod: nullable": (strict(a={"anyOf": [TEXT, {"type": "null"}]}), AUTOMATON),
    "zod: e-mail": (
        strict(
            a={
                "type": "string",
                "format": "email",
                "pattern": r"^[A-Za-z0-9_'+\-\.]+@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
            }
        ),
        AUTOMATON,
    ),
    "zod: moment": (
        strict(a={"type": "string", "format": "date-time", "pattern": r"Z$"}),
        AUTOMATON,
    ),
    "zod: discriminated": ({"$schema": LATEST, "oneOf": [CALL, OTHER_CALL]}, AUTOMATON),
    "zod: intersection": ({"allOf": [strict(a=TEXT), strict(a=TEXT)]}, AUTOMATON),
    "OpenAPI: inheritance": (
        {
            "$defs": {"A": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}},
            "allOf": [{"$ref": "#/$defs/A"}, {"type": "object", "properties": {"b": WHOLE}}],
        },
        AUTOMATON,
    ),
    "zod: default": (strict(a={"type": "string", "default": "x"}), AUTOMATON),
    "zod: not empty": ({"type": "array", "minItems": 1, "items": TEXT}, AUTOMATON),
    "draft 7: definitions": (
        {"$schema": DRAFT_7, "definitions": {"A": TEXT}, **strict(a={"$ref": "#/definitions/A"})},
        AUTOMATON,
    ),
    "draft 7: if": (
        {"$schema": DRAFT_7, **strict(a=TEXT), "if": {"required": ["a"]}, "then": {}},
        REFUSED,
    ),
    "draft 7: dependencies": (
        {"$schema": DRAFT_7, **strict(a=TEXT, b=TEXT), "dependencies": {"a": ["b"]}},
        REFUSED,
    ),
    "draft 4: bounds": (
        {"$schema": DRAFT_4, "type": "integer", "minimum": 0, "exclusiveMinimum": True},
        AUTOMATON,
    ),
    "anchor": ({"$defs": {"A": {"$anchor": "a", **CALL}}, "$ref": "#a"}, AUTOMATON),
    "address of its own": ({"$defs": {"A": {"$id": "urn:a", **TEXT}}, "$ref": "urn:a"}, MASK),
    "look-ahead": (strict(a={"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]+$"}), REFUSED),
    "not": (strict(a={"not": {"type": "null"}}), REFUSED),
    "unique": (strict(a={"type": "array", "items": TEXT, "uniqueItems": True}), REFUSED),
    "contains": (strict(a={"type": "array", "contains": TEXT}), REFUSED),
    "unevaluated": (
        {"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": False},
        AUTOMATON,
    ),
    "constant object": ({"const": {"a": 1, "b": [True, None]}}, AUTOMATON),
    "any JSON": ({}, MASK),
    "any object": ({"type": "object"}, MASK),
    "no type": ({"properties": {"a": TEXT}}, AUTOMATON),
    "overlapping": ({"oneOf": [WHOLE, {"type": "number"}]}, REFUSED),
    "typed extras": (
        {"type": "object", "properties": {"id": WHOLE}, "additionalProperties": TEXT},
        AUTOMATON,
    ),
    "prefixed names": (
        {"type": "object", "patternProperties": {"^x-": TEXT}, "additionalProperties": False},
        AUTOMATON,
    ),
    "nullable of OpenAPI": (strict(a={"type": "string", "nullable": True}), AUTOMATON),
    "all optional": (
        {**strict(**{f"field_{i}": TEXT for i in range(12)}), "required": []},
        AUTOMATON,
    ),
    "many fields": (strict(**{f"f{i}": {"type": "number"} for i in range(30)}), AUTOMATON),
    "deep": (strict(a=strict(b=strict(c=strict(d=strict(e=TEXT))))), AUTOMATON),
    "wide union": ({"anyOf": [strict(**{f"k{i}": TEXT}) for i in range(10)]}, AUTOMATON),
}


def _field(name: str, annotation: Any) -> dict[str, Any]:
    made = TypeAdapter(annotation).json_schema()
    shared = {key: made.pop(key) for key in ("$defs",) if key in made}
    return {**strict(value=made), **shared}


EVERYDAY: dict[str, tuple[dict[str, Any], str]] = {
    **{name: (_field(name, annotation), way) for name, (annotation, way) in FIELDS.items()},
    **{name: (model.model_json_schema(), way) for name, (model, way) in MODELS.items()},
    **OTHERS,
}
