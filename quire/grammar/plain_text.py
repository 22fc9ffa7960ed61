"""Strings of plain schemas as parts: lengths, patterns and formats, spelled as in JSON."""

from __future__ import annotations

from functools import cache
from typing import Any

from quire.grammar.parts import ANY, Both, InOrder, Part, Repeated, quoted, sign
from quire.grammar.plain_regex import read, read_search

# Each character of a bounded string takes about ten states.
_MOST_LENGTH = 200

_DAY = r"(0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|[12]\d)"
_DATE = rf"\d{{4}}-({_DAY})"
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_CLOCK}:([0-5]\d|60)(\.\d+)?([zZ]|[+\-]{_CLOCK})"
_BYTE = r"(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9\\-]*[a-zA-Z0-9])?"
_HOST = "[a-zA-Z0-9]([a-zA-Z0-9\\-]{0,61}[a-zA-Z0-9])?"
_ATOM = r"[a-zA-Z0-9!#$%\&'*+\-/=?\^_`{|}\~]+"
_HEX = "[0-9a-fA-F]"
_SPAN_DAYS = r"(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)"
_SPAN_TIME = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"


def _ipv6() -> str:
    """Eight groups, or fewer with :: in place of those left out."""
    group = f"{_HEX}{{1,4}}"
    found = [f"({group}:){{7}}{group}"]
    for before in range(8):
        first = f"({group}:){{{before - 1}}}{group}" if before else ""
        after = f"({group}(:{group}){{0,{6 - before}}})?" if before < 7 else ""
        found.append(f"{first}::{after}")
    return "|".join(found)


def _uri() -> str:
    """A URI by RFC 3986."""
    plain, coded = r"a-zA-Z0-9\-._\~!$\&'()*+,;=", f"%{_HEX}{{2}}"
    segment = f"([{plain}:@]|{coded})"
    tail = f"({segment}|[/?])*"
    literal = rf"\[({_ipv6()}|v{_HEX}+\.[{plain}:]+)\]"
    host = f"({literal}|([{plain}]|{coded})*)"
    authority = f"(([{plain}:]|{coded})*@)?{host}(:[0-9]*)?"
    rooted = f"{segment}+(/{segment}*)*"
    path = f"(//{authority}(/{segment}*)*|/({rooted})?|({rooted})?)"
    return rf"[a-zA-Z][a-zA-Z0-9+\-.]*:{path}(\?{tail})?(\#{tail})?"


# For each format, the texts that llguidance accepts.
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": rf"P({_SPAN_DAYS}({_SPAN_TIME})?|{_SPAN_TIME}|\d+W)",
    "email": rf"{_ATOM}(\.{_ATOM})*@({_LABEL}(\.{_LABEL})*|\[{_IPV4}\])",
    "hostname": rf"{_HOST}(\.{_HOST})*",
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": _uri(),
    "uuid": f"{_HEX}{{8}}-({_HEX}{{4}}-){{3}}{_HEX}{{12}}",
}


@cache
def _format(name: str) -> Part | None:
    regex = _FORMATS.get(name)
    return None if regex is None else read(regex.replace(r"\d", "[0-9]"))


def read_text(schema: dict[str, Any], *, by_number: bool) -> Part | None:
    """The strings that a schema allows, with their quotes; None if it is not plain."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if type(least) is not int or type(most) not in (int, type(None)) or least < 0:
        return None
    if max(least, most or 0) > _MOST_LENGTH or (most is not None and most < least):
        return None
    found: list[Part | None] = []
    patterns = [part["pattern"] for part in (schema, *schema.get("allOf", ())) if "pattern" in part]
    found += map(read_search, patterns)
    if "format" in schema:
        found.append(_format(schema["format"]))
    if least or most is not None or not found:
        found.append(Repeated(ANY, least, most))
    whole: Part | None = None
    for part in found:
        if part is None:
            return None
        spelling = quoted(part, by_number=by_number)
        whole = spelling if whole is None else Both(whole, spelling)
    return None if whole is None else InOrder((sign('"'), whole, sign('"')))
