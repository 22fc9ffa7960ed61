"""Rows that must cost themselves and nothing else: (name, line, error_type).

The job they are for reads conversations from the column `talk` and names rows by `id`.
"""

from __future__ import annotations

import json
from typing import Any

LONG = 33 << 20
ASK = [{"role": "user", "content": "hello"}]

Kind = tuple[str, bytes, str]


def row(name: str, **values: Any) -> bytes:
    return json.dumps({"id": name, "talk": ASK, **values}).encode()


def said(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


NOT_JSON: dict[str, bytes] = {
    "open brace": b"{",
    "close brace": b"}",
    "open bracket": b"[",
    "comma": b",",
    "colon": b":",
    "word": b"hello",
    "two words": b"hello there",
    "single quotes": b"{'id': 'a'}",
    "bare key": b"{id: 1}",
    "no value": b'{"id": }',
    "no colon": b'{"id" 1}',
    "trailing comma": b'{"id": 1,}',
    "leading comma": b'{,"id": 1}',
    "double comma": b'{"id": 1,,"b": 2}',
    "missing comma": b'{"id": 1 "b": 2}',
    "unclosed object": b'{"id": 1',
    "unclosed string": b'{"id": "a}',
    "unclosed list": b'{"id": [1, 2}',
    "two objects": b'{"id": 1}{"id": 2}',
    "two objects with a space": b'{"id": 1} {"id": 2}',
    "garbage behind": b'{"id": 1} x',
    "garbage before": b'x {"id": 1}',
    "comment": b'{"id": 1} // one',
    "block comment": b'/* one */ {"id": 1}',
    "leading zero": b'{"id": 01}',
    "plus sign": b'{"id": +1}',
    "no digit before": b'{"id": .5}',
    "no digit after": b'{"id": 1.}',
    "no exponent": b'{"id": 1e}',
    "hexadecimal": b'{"id": 0x10}',
    "underscore": b'{"id": 1_000}',
    "not a number": b'{"id": NaN}',
    "infinity": b'{"id": Infinity}',
    "minus infinity": b'{"id": -Infinity}',
    "too large a number": b'{"id": 1e999}',
    "too small a number": b'{"id": -1e999}',
    "5000 digits": b'{"id": ' + b"9" * 5000 + b"}",
    "python none": b'{"id": None}',
    "python true": b'{"id": True}',
    "undefined": b'{"id": undefined}',
    "unknown escape": b'{"id": "\\x41"}',
    "short escape": b'{"id": "\\u12"}',
    "escape without digits": b'{"id": "\\uzzzz"}',
    "tab in a text": b'{"id": "a\tb"}',
    "bell in a text": b'{"id": "a\x07b"}',
    "nul in a text": b'{"id": "a\x00b"}',
    "nul alone": b"\x00",
    "nuls behind": b'{"id": 1}\x00\x00',
    "byte order mark": b'\xef\xbb\xbf{"id": 1}',
    "utf-16": '{"id": 1}'.encode("utf-16-le"),
    "latin-1": '{"id": "é"}'.encode("latin-1"),
    "cut utf-8": b'{"id": "\xc3"}',
    "lone continuation": b'{"id": "\x80"}',
    "overlong utf-8": b'{"id": "\xc0\x80"}',
    "surrogate in utf-8": b'{"id": "\xed\xa0\x80"}',
    "five bytes": b'{"id": "\xf8\x88\x80\x80\x80"}',
    "beyond unicode": b'{"id": "\xf4\x90\x80\x80"}',
    "deep list": b'{"id": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep object": b'{"id": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "xml": b"<id>1</id>",
    "yaml": b"- id: 1",
    "csv": b'1,"a, b",c',
    "gzip": b"\x1f\x8b\x08\x00abc",
    "null": b"null",
    "true": b"true",
    "number": b"17",
    "text": b'"text"',
    "list": b"[]",
    "list of objects": b'[{"id": 1}]',
}

NO_ID: dict[str, dict[str, Any]] = {
    "null": {"id": None},
    "empty": {"id": ""},
    "list": {"id": [1]},
    "object": {"id": {"a": 1}},
    "fraction": {"id": 1.5},
    "true": {"id": True},
}

NO_TALK: dict[str, tuple[Any, str]] = {
    "null": (None, "invalid_prompt"),
    "number": (5, "invalid_prompt"),
    "true": (True, "invalid_prompt"),
    "object": ({"role": "user", "content": "x"}, "invalid_prompt"),
    "plain text": ("hello", "malformed_row"),
    "JSON text of an object": ('{"role": "user"}', "invalid_prompt"),
    "JSON text of a number": ("5", "invalid_prompt"),
    "no messages": ([], "invalid_prompt"),
    "list of null": ([None], "invalid_prompt"),
    "list of numbers": ([1, 2], "invalid_prompt"),
    "list of texts": (["hello"], "invalid_prompt"),
    "list of lists": ([[]], "invalid_prompt"),
    "one good, one bad": ([*ASK, 5], "invalid_prompt"),
    "empty message": ([{}], "invalid_prompt"),
    "no role": ([{"content": "x"}], "invalid_prompt"),
    "null role": ([{"role": None, "content": "x"}], "invalid_prompt"),
    "number as role": ([{"role": 1, "content": "x"}], "invalid_prompt"),
    "list as role": ([{"role": ["user"], "content": "x"}], "invalid_prompt"),
    "no content": ([{"role": "user"}], "invalid_prompt"),
    "number as content": (said(5), "invalid_prompt"),
    "true as content": (said(True), "invalid_prompt"),
    "object as content": (said({"text": "x"}), "invalid_prompt"),
    "number as part": (said([5]), "invalid_prompt"),
    "part without type": (said([{"smell": "x"}]), "invalid_prompt"),
    "unknown part": (said([{"type": "smell", "smell": "x"}]), "invalid_prompt"),
    "part without text": (said([{"type": "text"}]), "invalid_prompt"),
    "number as text": (said([{"type": "text", "text": 5}]), "invalid_prompt"),
    "image": (said([{"type": "image_url", "image_url": {"url": "x"}}]), "not_supported"),
    "audio": (said([{"type": "input_audio", "input_audio": {"data": "x"}}]), "not_supported"),
    "half a surrogate pair": (said("a\ud800b"), "invalid_prompt"),
    "the other half": (said("a\udc00b"), "invalid_prompt"),
    "halves in the wrong order": (said("\udc00\ud800"), "invalid_prompt"),
    "half a pair as role": ([{"role": "\ud800", "content": "x"}], "invalid_prompt"),
    "just too long": (said("x" * 506), "prompt_too_long"),
    "too long": (said("x" * 2_000), "prompt_too_long"),
    "far too long": (said("x" * 200_000), "prompt_too_long"),
    "too many messages": (ASK * 200, "prompt_too_long"),
}
CLASH = ("output", "finish_reason", "prompt_tokens", "output_tokens", "error", "error_type")


def kinds() -> list[Kind]:
    found: list[Kind] = [(name, line, "malformed_row") for name, line in NOT_JSON.items()]
    found.append(("endless line", b'{"id": "' + b"x" * LONG + b'"}', "row_too_long"))
    found += [(f"id is {name}", row("", **id), "missing_id") for name, id in NO_ID.items()]
    found.append(("no id", json.dumps({"talk": ASK}).encode(), "missing_id"))
    found.append(("the same id again", row("good 0"), "duplicate_id"))
    found.append(("no conversation", json.dumps({"id": "no talk"}).encode(), "missing_column"))
    for name, (talk, kind) in NO_TALK.items():
        found.append((f"talk: {name}", row(f"talk {name}", talk=talk), kind))
    found += [(f"has {name}", row(f"c {name}", **{name: 1}), "column_clash") for name in CLASH]
    return found
