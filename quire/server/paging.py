"""Pages of lists: the parameters `limit`, `after` and `order`, and the object of a page."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar

from quire.openai_api.errors import bad, not_found
from quire.params.rules import show
from quire.server.ids import is_id


@dataclass(frozen=True, slots=True)
class Page:
    limit: int
    after: str | None
    ascending: bool


PAGE_REFUSALS = frozenset({400, 404})


def page_query(*, default: int, most: int) -> dict[str, dict[str, Any]]:
    """The JSON Schema of the parameters that page_asked reads."""
    return {
        "limit": {"type": "integer", "minimum": 1, "maximum": most, "default": default},
        "after": {"type": "string"},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
    }


def given(query: Mapping[str, str], name: str) -> str | None:
    """A parameter of a list; an empty one is none: clients send `after=` for the first page."""
    return query.get(name) or None


def page_asked(query: Mapping[str, str], *, default: int, most: int) -> Page:
    """The page that a query asks for; 400 for invalid parameters."""
    limit = given(query, "limit") or str(default)
    is_number = limit.isascii() and limit.isdigit() and len(limit) < 10
    if not is_number or not 1 <= int(limit) <= most:
        raise bad(f"limit is a whole number from 1 to {most:,}, not {show(limit)}", param="limit")
    order = given(query, "order") or "desc"
    if order not in ("asc", "desc"):
        raise bad(f"order is asc or desc, not {show(order)}", param="order")
    return Page(int(limit), given(query, "after"), order == "asc")


def select_page(
    connection: sqlite3.Connection,
    table: str,
    page: Page,
    *,
    kinds: tuple[str, ...],
    where: Mapping[str, Any],
) -> tuple[list[sqlite3.Row], bool]:
    """The rows of a page, newest first unless asked otherwise, and whether more follow.

    `table` and the column names in `where` must not come from a client; values are bound.
    """
    conditions = [f"{name} = :{name}" for name in where]
    bound = dict(where)
    if page.after is not None:
        found = None
        if is_id(page.after, *kinds):
            found = connection.execute(
                f"SELECT seq FROM {table} WHERE key_id = :key_id AND id = :id",
                {"key_id": where["key_id"], "id": page.after},
            ).fetchone()
        if found is None:
            raise not_found("after names nothing in this list", param="after")
        conditions.append(f"seq {'>' if page.ascending else '<'} :after")
        bound["after"] = found["seq"]
    order = "ASC" if page.ascending else "DESC"
    rows = connection.execute(
        f"SELECT * FROM {table} WHERE {' AND '.join(conditions)} ORDER BY seq {order} LIMIT :most",
        {**bound, "most": page.limit + 1},
    ).fetchall()
    return rows[: page.limit], len(rows) > page.limit


class Identified(TypedDict):
    id: str


Item = TypeVar("Item", bound=Identified)


class ListObject(TypedDict, Generic[Item]):
    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def list_object(items: Sequence[Item], has_more: bool) -> ListObject[Item]:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
