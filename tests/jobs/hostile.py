"""Values that rows may hold and that nobody means well with: JSON's, lines that are none, Arrow's,
and the fields of a batch line. Each is one row; what it costs is that row at most."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa

DEEP_LIST: Any = []
for _ in range(100):
    DEEP_LIST = [DEEP_LIST]


def nested(levels: int, kind: str = "[]") -> str:
    opening = kind[0] if kind == "[]" else '{"a":'
    return opening * levels + ("" if kind == "[]" else "1") + kind[1] * levels


def put(text: str, value: str) -> str:
    return text.replace("%s", value)


# As JSON text, since not all of it is something that Python can write.
JSON_VALUES: tuple[str, ...] = (
    *("null", "true", "false", "0", "-0", "-1", "1.5", "-0.0", "1e308", "5e-324", "1e-400"),
    *(str(2**31), str(2**53 + 1), str(2**63), str(2**64), str(-(2**63) - 1), "9" * 100),
    *("9" * 4300, "9" * 4301, "9" * 5000, "-" + "9" * 5000, "1." + "9" * 5000, "1e999", "-1e999"),
    *("NaN", "Infinity", "-Infinity", "01", "+1", "1.", ".5", "0x10", "1_000", "tru", "''"),
    *(
        '""',
        '" "',
        '"a"',
        '"\\u0000"',
        '"a\\u0000b"',
        '"\\ud800"',
        '"\\udfff x"',
        '"\\udc00\\ud800"',
    ),
    *(
        '"\\ud83d\\ude00"',
        '"\\uffff"',
        '"\\u202e"',
        '"\\ufeff"',
        '"\\u2028"',
        '"\\u001b[31m"',
        '"\\r\\n"',
    ),
    *(
        '"{{ 7 * 7 }}"',
        '"{% for x in range(9) %}"',
        '"<eos>"',
        '"<|im_end|>"',
        '"%s %d"',
        '"${HOME}"',
    ),
    *('"' + "x" * 400 + '"', '"' + "é" * 3000 + '"', '"' + "x" * 200_000 + '"', '"9999-99-99"'),
    *("[]", "{}", "[[]]", "[{}]", "[null]", '[1, "a", null]', '{"": 1}', '{"a": {"b": []}}'),
    *('{"a": 1, "a": 2}', '{"\\u0000": 1}', '{"\\ud800": 1}', '{"__class__": 1}', '{"self": 1}'),
    *('{"role": "user"}', '[{"role": "user", "content": "x"}]', '{"type": "text", "text": "x"}'),
    *('{"type": "image_url"}', '{"bytes": "AA=="}', "[[1, 2], [3]]", json.dumps([0] * 5000)),
    *(json.dumps(put('{"x": %s}', value)) for value in ("9" * 5000, "NaN", "1e999", nested(700))),
    *(json.dumps(value) for value in ("[" * 5000, "{", '{"x": "\\ud800"}', "[]", "null")),
    *(nested(100), nested(127), nested(200), nested(700), nested(5000), nested(90_000)),
    *(nested(100, "{}"), nested(200, "{}"), nested(700, "{}"), nested(5000, "{}"), "[1,]", "{,}"),
)

LINES: tuple[bytes, ...] = (
    *(b"\xff", b"\xed\xa0\x80", b'{"value": "\xff"}', b'{"value": "\xc3"}', b'{"\xff": 1}'),
    *(b"\x00", b'{"value": "\x00"}', b'{"value": 1}\x00', b"\xef\xbb\xbf{}", b"\xfe\xff\x00{"),
    *(
        b'{"value": 1} {"value": 2}',
        b'{"value": "a\tb"}',
        b"{",
        b"}",
        b"[",
        b'"',
        b"\\",
        b"-",
        b"nul",
    ),
)

# Where a value may stand in a conversation; %s is the value.
PLACES: tuple[str, ...] = (
    '[{"role": "user", "content": %s}]',
    '[{"role": %s, "content": "x"}]',
    '[{"role": "user", "content": [%s]}]',
    '[{"role": "user", "content": [{"type": "text", "text": %s}]}]',
    '[{"role": "user", "content": "x", "more": %s}]',
    '[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function":'
    ' {"name": "f", "arguments": %s}}]}]',
    '[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": %s}]',
    "[%s]",
    "%s",
)

FIELDS = (
    *("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
    *("skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "bad_words"),
    *("allowed_token_ids", "truncate_prompt_tokens", "logit_bias", "model", "user", "metadata"),
    *("tools", "documents", "chat_template_kwargs", "response_format", "max_tokens", "stream"),
    *("max_completion_tokens", "add_generation_prompt", "continue_final_message", "tool_choice"),
)
FIELD_VALUES = (
    *(
        "0",
        "-1",
        "1.5",
        "9" * 4000,
        "9" * 5000,
        "NaN",
        "1e999",
        '""',
        '"\\ud800"',
        '"x"',
        "[]",
        "{}",
    ),
    *('{"5": 1}', '{"%s": 1}' % ("9" * 5000), '[""]', "[-1]", nested(120), nested(700, "{}")),
    put('{"type": "json_schema", "json_schema": {"schema": %s}}', nested(90, "{}")),
    "[[[]]]",
    put('[{"type": "function", "function": {"name": %s}}]', nested(700)),
    put('[{"type": "function", "function": {"name": %s}}]', "0"),
    *(
        put('{"json": %s}', value)
        for value in ('"{"', "[]", '{"type": "\\ud800"}', nested(120, "{}"))
    ),
)


def buffers(kind: pa.DataType, length: int, *parts: bytes | None) -> pa.Array:
    """An array as a hostile file has it: nobody has looked at its bytes."""
    given = [None if part is None else pa.py_buffer(part) for part in parts]
    return pa.Array.from_buffers(kind, length, given)


def whole(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def arrow_values() -> dict[str, pa.Array]:
    """Columns of three rows, by what is odd about them."""
    three = [0, 2**62, 5]
    text = pa.array(["a", "b", "c"])
    union = pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), text]
    )
    unknown = pa.timestamp("us", "Mars/Phobos")
    words = pa.dictionary(pa.int8(), pa.string())
    found = {
        "not UTF-8": buffers(pa.string(), 3, None, whole(0, 2, 4, 6), b"ok\xff\xfeok"),
        "not UTF-8, large": buffers(
            pa.large_string(), 3, None, struct.pack("<4q", 0, 2, 4, 6), b"ok\xed\xa0ok"
        ),
        "far offset": buffers(pa.string(), 3, None, whole(0, 2, 2**30, 6), b"okokok"),
        "negative offset": buffers(pa.binary(), 3, None, whole(0, -2, 4, 6), b"okokok"),
        "offsets backwards": buffers(pa.string(), 3, None, whole(0, 4, 2, 6), b"okokok"),
        "entry that is not there": pa.DictionaryArray.from_buffers(
            words, 3, [None, pa.py_buffer(b"\0\x7f\0")], text
        ),
        "entry that is not UTF-8": pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None], pa.int8()),
            buffers(pa.string(), 2, None, whole(0, 2, 4), b"\xff\xfeok"),
        ),
        "two fields of one name": pa.StructArray.from_arrays([text, text], names=["a", "a"]),
        "zone": pa.array(three, unknown),
        "zone in a list": pa.array([[0], None, [2**62]], pa.list_(unknown)),
        "zone in a map": pa.array([[("a", 0)]] * 3, pa.map_(pa.string(), unknown)),
        "zone in a struct": pa.array([{"a": 1}] * 3, pa.struct([("a", unknown)])),
        "union": union,
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), text.slice(0, 2)),
        "month, day, nano": pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
        "dates": pa.array([0, 2**31 - 1, -(2**31)], pa.date32()),
        "dates, long": pa.array(three, pa.date64()),
        "no fields": pa.array([{}, None, {}], pa.struct([])),
        "bytes": pa.array([b"\xff", b"", b"text"]),
        "no bytes": pa.array([b""] * 3, pa.binary(0)),
        "views": pa.array(["x" * 50, None, ""], pa.string_view()),
        "list views": pa.array([[1], None, []], pa.list_view(pa.int64())),
        "fixed lists": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)),
        "UUIDs": pa.array([b"0123456789abcdef"] * 3, pa.uuid()),
        "nothing": pa.nulls(3),
        "decimals": pa.array([1, None, 10**70], pa.decimal256(76, 0)),
        "halves": pa.array([1.5, float("nan"), float("inf")], pa.float16()),
        "not finite": pa.array([float("nan"), float("-inf"), -0.0]),
        "not finite, inside": pa.array([[float("nan")], [], [None]]),
        "flags": pa.array([True, None, False]),
        "large": pa.array([2**64 - 1, 0, 1], pa.uint64()),
        "NUL": pa.array(["a\0b", "\0", ""]),
    }
    for unit in ("s", "ms", "us", "ns"):
        found[f"timestamps in {unit}"] = pa.array([1, -(2**62), 2**62], pa.timestamp(unit))
        found[f"UTC in {unit}"] = pa.array([1, -(2**62), 2**62], pa.timestamp(unit, "UTC"))
        found[f"durations in {unit}"] = pa.array([1, -(2**62), 2**62], pa.duration(unit))
    found["times"] = pa.array([-5, 10**9, 2**31 - 1], pa.int32()).view(pa.time32("s"))
    found["long times"] = pa.array([1, -5, 2**62], pa.int64()).view(pa.time64("ns"))
    return found
