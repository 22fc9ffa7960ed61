"""Field: one field that a body may have, and how it is treated; bodies as tables of fields."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quire.openai_api.errors import ApiError, bad, not_supported
from quire.params.rules import show

MOST_ENTRIES = 1 << 14  # of a list, where nothing else bounds it
Kind = Literal["honoured", "moot", "refused"]
_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "true or false": (bool,),
    "a whole number": (int,),
    "a number": (int, float),
    "a list": (list,),
    "an object": (dict,),
    "text or a list": (str, list),
    "text or an object": (str, dict),
    "true, false or a whole number": (bool, int),
    "anything": (object,),
}
_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
# Fields that other servers and clients use, and what to write here instead.
_FOREIGN = {
    "enable_thinking": 'it goes into chat_template_kwargs: {"enable_thinking": ...}',
    "extra_body": "what is in it goes beside the other fields",
    "options": "what is in it goes beside the other fields, under OpenAI's names",
    "repeat_penalty": "it is repetition_penalty here",
    **dict.fromkeys(("max_new_tokens", "num_predict"), "it is max_tokens here"),
    "num_ctx": "the server has one length for all: --option max_model_len=...",
}
LONGEST_NAME = 100  # characters of a name that an error repeats
Body = Mapping[str, "Field"]  # by their names
FieldRow = tuple[str, str, str] | tuple[str, str, str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field: how it is treated, the type of its value, and which bodies have it."""

    name: str
    kind: Kind
    value: str
    endpoints: tuple[str, ...]
    why: str
    required: bool = False
    harmless: tuple[Any, ...] = ()  # values of a refused field that are accepted

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its value. Null counts as absent."""
        described: dict[str, Any] = {"description": f"{self.kind}: {self.why}".strip(": ")}
        if self.kind == "refused":
            return {**described, "enum": [None, *self.harmless]}
        types = _TYPES[self.value]
        if self.kind == "moot" or object in types:
            return described
        null = [] if self.required else ["null"]
        return {**described, "type": [*(_JSON_TYPES[one] for one in types), *null]}

    def refuse(self, value: Any) -> None:
        """Raise ApiError unless the value is a harmless one."""
        if not any(type(value) is type(one) and value == one for one in self.harmless):
            raise not_supported(f"{self.name} is not supported. {self.why}", param=self.name)

    def check(self, value: Any) -> None:
        """Raise ApiError for a value of another type. A bool is never a number. Moot fields are not
        checked: some clients send an object as `user`."""
        if self.kind == "moot":
            return
        types = _TYPES[self.value]
        is_right = isinstance(value, types) and (
            not isinstance(value, bool) or bool in types or object in types
        )
        if not is_right:
            raise bad(f"{self.name} is {self.value}, not {show(value)}", param=self.name)
        # A list of token ids may be longer; its length is checked against the model's.
        if isinstance(value, list) and len(value) > MOST_ENTRIES and type(value[0]) is not int:
            raise bad(
                f"no list has more than {MOST_ENTRIES:,} entries, and {self.name} has "
                f"{len(value):,}",
                param=self.name,
            )


def table(
    kind: Kind,
    endpoints: tuple[str, ...],
    *rows: FieldRow,
    required: Collection[str] = (),
) -> list[Field]:
    """Fields of one kind: name, value, why, and a value that is harmless."""
    return [
        Field(row[0], kind, row[1], endpoints, row[2], row[0] in required, harmless=row[3:])
        for row in rows
    ]


def body_of(fields: Iterable[Field]) -> Body:
    return {field.name: field for field in fields}


def plain_body(required: Iterable[FieldRow], others: Iterable[FieldRow] = ()) -> Body:
    """A body of which every field is honoured, at one endpoint alone."""
    needed = list(required)
    return body_of(table("honoured", (), *needed, *others, required=[row[0] for row in needed]))


def body_schema(body: Body) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: field.schema for name, field in body.items()},
        "required": [name for name, field in body.items() if field.required],
        "additionalProperties": False,
    }


def checked_fields(
    known: Body, given: Any, *, elsewhere: Mapping[str, Body] | None = None
) -> dict[str, Any]:
    """The fields that are set, with their types checked; null counts as absent. `elsewhere`: the
    bodies of other endpoints, to which an unknown field may belong."""
    if not isinstance(given, Mapping):
        raise bad("the body is a JSON object")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        field = known.get(name)
        if field is None:
            raise _unknown(name, known, elsewhere or {})
        if field.kind == "refused":
            field.refuse(value)
        else:
            field.check(value)
            found[name] = value
    for field in known.values():
        if field.required and field.name not in found:
            raise bad(f"the body has no {field.name}, which is {field.value}", param=field.name)
    return found


def _unknown(name: str, known: Body, elsewhere: Mapping[str, Body]) -> ApiError:
    shown = name[:LONGEST_NAME]
    near = difflib.get_close_matches(shown, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    owners = [endpoint for endpoint, body in elsewhere.items() if name in body]
    if owners:
        hint = f"; it belongs to {owners[0]}"
    hint = f"; {_FOREIGN[name]}" if name in _FOREIGN else hint
    return bad(f"there is no field {shown!r}{hint}", param=shown, code="unknown_parameter")
