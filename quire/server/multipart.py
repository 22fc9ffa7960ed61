"""Reads a form with one file as it arrives: its fields are kept, and the file's bytes passed on.

Only a few short fields are in memory, whatever is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from quire.openai_api.errors import ApiError, bad

# A broken form gets an answer and no log line: such lines could fill a disk.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

MOST_PARTS, LONGEST_FIELD = 16, 4096
MOST_HEADERS, LONGEST_HEADER = 8, 4096  # of a part of the form


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form beside its file. A field whose name ends in [] may come several times,
    and is a list."""

    fields: Mapping[str, str]
    filename: str
    lists: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    is_file: bool = False
    value: bytearray = field(default_factory=bytearray)


def form_schema(*, file: str, known: Collection[str], required: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema of a form that a FormReader accepts."""
    text = {"type": "string"}
    fields: dict[str, Any] = {
        name: {"type": "array", "items": text} if name.endswith("[]") else text for name in known
    }
    fields[file] = {"type": "string", "format": "binary"}
    return {
        "type": "object",
        "properties": fields,
        "required": [file, *required],
        "additionalProperties": False,
    }


class FormReader:
    """Parses the bytes of a form as they arrive; ApiError 400 for an invalid form."""

    def __init__(self, content_type: str, *, file: str, known: Collection[str]) -> None:
        """`file` is the field with the file, `known` are the other fields that are allowed."""
        self._file, self._known = file, known
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._finished,
            },
        )
        self._part = _Part()
        self._header: tuple[bytearray, bytearray] = bytearray(), bytearray()
        self._fields: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {}
        self._filename: str | None = None
        self._num_parts = 0
        self._came: list[bytes] = []
        self._is_whole = False

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of the file that came with `data`."""
        try:
            self._parser.write(data)
        except FormParserError:
            raise _broken() from None
        came, self._came = self._came, []
        return came

    def finish(self) -> Form:
        """The fields of the form, after its last byte."""
        if not self._is_whole:
            raise _broken()
        if self._filename is None:
            raise bad(f"the form has no {self._file}", param=self._file)
        return Form(self._fields, self._filename, self._lists)

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MOST_PARTS:
            raise bad(f"the form has more than {MOST_PARTS} parts")
        self._part = _Part()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])
        _check_header(self._header[0])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])
        _check_header(self._header[1])

    def _header_end(self) -> None:
        name, value = self._header
        self._part.headers[bytes(name).lower()] = bytes(value)
        if len(self._part.headers) > MOST_HEADERS:
            raise _broken()
        self._header = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        part = self._part
        _, options = parse_options_header(part.headers.get(b"content-disposition", b""))
        part.name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        if part.name == self._file:
            if self._filename is not None:
                raise bad("the form has two files; send one", param=self._file)
            part.is_file = True
            self._filename = (filename or b"").decode("utf-8", "replace")
        elif filename is not None:
            raise bad(f"the file of a form is its field {self._file}", param=self._file)
        elif part.name not in self._known or part.name in self._fields:
            raise bad(f"the form has the fields {', '.join((self._file, *self._known))}, each once")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part.is_file:
            self._came.append(data[start:end])
            return
        self._part.value.extend(data[start:end])
        if len(self._part.value) > LONGEST_FIELD:
            raise bad(
                f"a field has at most {LONGEST_FIELD:,} bytes beside the file",
                param=self._part.name,
            )

    def _end(self) -> None:
        if self._part.is_file:
            return
        name, value = self._part.name, self._part.value.decode("utf-8", "replace")
        if name.endswith("[]"):
            self._lists.setdefault(name, []).append(value)
        else:
            self._fields[name] = value

    def _finished(self) -> None:
        self._is_whole = True


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise ApiError(415, "send multipart/form-data with a file", code="unsupported_media_type")
    if not (boundary := options.get(b"boundary")) or len(boundary) > 256:
        raise bad("the Content-Type names no boundary of the form")
    return boundary


def _check_header(header: bytearray) -> None:
    if len(header) > LONGEST_HEADER:
        raise _broken()


def _broken() -> ApiError:
    return bad("the form is broken: it does not read as multipart/form-data")
