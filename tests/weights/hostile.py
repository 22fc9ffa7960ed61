"""Model files that lie, byte by byte. Each maker writes one and nothing here knows the parsers."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

STRING, ARRAY, U32 = 8, 9, 4
HUGE = 2**63


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: bytes | str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + body


def tensor(
    name: str, dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    rank = len(dims) if rank is None else rank
    head = text(name) + struct.pack("<I", rank) + struct.pack(f"<{len(dims)}Q", *dims)
    return head + struct.pack("<IQ", kind, offset)


ARCH = entry("general.architecture", STRING, text("llama"))
WORDS = entry("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, text("a") + text("b") + text("c")))
NUMBERS = entry("scores", ARRAY, array(6, 2, struct.pack("<2f", 1, 2)))


def gguf_bytes(
    entries: tuple[bytes, ...] = (ARCH, WORDS, NUMBERS),
    tensors: tuple[bytes, ...] = (tensor("a"), tensor("b", offset=32)),
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    num_entries: int | None = None,
    num_tensors: int | None = None,
    data: bytes = bytes(48),
) -> bytes:
    counts = struct.pack(
        "<QQ",
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    head = magic + version + counts + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def lone(kind: int, value: bytes = b"") -> bytes:
    """A file whose last metadata entry has this type and these bytes."""
    return gguf_bytes((ARCH, entry("x", kind, value)), (), data=b"")


GGUF: dict[str, bytes] = {
    "empty file": b"",
    "bad magic": gguf_bytes(magic=b"GGJT"),
    "a zip": b"PK\x03\x04" + bytes(64),
    "tensors without number": gguf_bytes(num_tensors=HUGE),
    "more tensors than bytes": gguf_bytes(num_tensors=100),
    "entries without number": gguf_bytes(num_entries=2**64 - 1),
    "one entry too many": gguf_bytes(num_entries=4),
    "key longer than the file": gguf_bytes((struct.pack("<Q", HUGE) + b"x" * 40,)),
    "empty key": gguf_bytes((ARCH, entry("", U32, bytes(4)))),
    "key that is not UTF-8": gguf_bytes((ARCH, entry(b"\xff\xfe", U32, bytes(4)))),
    "key twice": gguf_bytes((ARCH, ARCH)),
    "string longer than the file": lone(STRING, struct.pack("<Q", 2**40)),
    "string that is not UTF-8": lone(STRING, text(b"\xc3\x28")),
    "unknown value type": lone(77, bytes(16)),
    "array of unknown type": lone(ARRAY, array(13, 1, bytes(16))),
    "array of arrays": lone(ARRAY, array(ARRAY, 1, array(U32, 1, bytes(4)))),
    "array of arrays of arrays": lone(ARRAY, b"".join(array(ARRAY, 1) for _ in range(5000))),
    "strings without number": lone(ARRAY, array(STRING, HUGE)),
    "strings that end early": lone(ARRAY, array(STRING, 3, text("a" * 30))).rstrip(b"\0"),
    "a string too long in an array": lone(ARRAY, array(STRING, 1, struct.pack("<Q", HUGE))),
    "a bad string in an array": lone(ARRAY, array(STRING, 1, text(b"\xff"))),
    "numbers without number": lone(ARRAY, array(12, 2**61)),
    "bytes without number": lone(ARRAY, array(0, 2**64 - 1)),
    "alignment 0": gguf_bytes((ARCH, entry("general.alignment", U32, struct.pack("<I", 0)))),
    "alignment 3": gguf_bytes((ARCH, entry("general.alignment", U32, struct.pack("<I", 3)))),
    "alignment 2^31": gguf_bytes(
        (ARCH, entry("general.alignment", U32, struct.pack("<I", 1 << 31)))
    ),
    "alignment of words": gguf_bytes((ARCH, entry("general.alignment", STRING, text("32")))),
    "no dimensions": gguf_bytes(tensors=(tensor("a", ()),)),
    "five dimensions": gguf_bytes(tensors=(tensor("a", (1,) * 5),)),
    "dimensions without number": gguf_bytes(tensors=(tensor("a", (4,), rank=2**32 - 1),)),
    "a dimension of 0": gguf_bytes(tensors=(tensor("a", (4, 0)),)),
    "a dimension of 2^63": gguf_bytes(tensors=(tensor("a", (HUGE,)),)),
    "a product beyond 2^64": gguf_bytes(tensors=(tensor("a", (2**32, 2**32, 4)),)),
    "rows that are not whole blocks": gguf_bytes(tensors=(tensor("a", (33,), kind=2),)),
    "offset past the end": gguf_bytes(tensors=(tensor("a", offset=1 << 20),)),
    "offset of 2^64 - 32": gguf_bytes(tensors=(tensor("a", offset=2**64 - 32),)),
    "offset not aligned": gguf_bytes(tensors=(tensor("a", offset=4),)),
    "tensor one byte too long": gguf_bytes(tensors=(tensor("a", (4,)),), data=bytes(15)),
    "tensor twice": gguf_bytes(tensors=(tensor("a"), tensor("a", offset=32))),
    "tensors on top of each other": gguf_bytes(tensors=(tensor("a"), tensor("b"))),
    "tensors that overlap": gguf_bytes(tensors=(tensor("a", (12,)), tensor("b", offset=32))),
    "tensor name that is not UTF-8": gguf_bytes(tensors=(text(b"\xff") + bytes(24),)),
}
GGUF_UNSUPPORTED: dict[str, bytes] = {
    "version 1": gguf_bytes(version=struct.pack("<I", 1)),
    "version 4": gguf_bytes(version=struct.pack("<I", 4)),
    "version 0": gguf_bytes(version=struct.pack("<I", 0)),
    "big-endian": gguf_bytes(version=struct.pack(">I", 3)),
    "a format of two sizes": gguf_bytes(tensors=(tensor("a", (256,), kind=42),)),
    "a format given up": gguf_bytes(tensors=(tensor("a", (256,), kind=4),)),
    "a format of tomorrow": gguf_bytes(tensors=(tensor("a", (256,), kind=2**31),)),
    "one part of many": gguf_bytes((ARCH, entry("split.count", U32, struct.pack("<I", 3)))),
}


def safetensors_bytes(header: Any, data: bytes = bytes(16), *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def one(**changes: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


def two(first: tuple[int, int], second: tuple[int, int]) -> dict[str, Any]:
    def half(offsets: tuple[int, int]) -> dict[str, Any]:
        size = offsets[1] - offsets[0]
        return {"dtype": "U8", "shape": [size], "data_offsets": list(offsets)}

    return {"a": half(first), "b": half(second)}


ENTRY = json.dumps(one())[1:-1]
SAFETENSORS: dict[str, bytes] = {
    "empty file": b"",
    "four bytes": b"\x01\0\0\0",
    "length without header": struct.pack("<Q", 100),
    "header of 2^63 bytes": safetensors_bytes(one(), length=HUGE),
    "header one byte past the end": safetensors_bytes(b"{}", b"", length=3),
    "header that is not JSON": safetensors_bytes(b"{'t': 1}"),
    "header that is not UTF-8": safetensors_bytes(b"\xff\xfe{}"),
    "header that is a list": safetensors_bytes([]),
    "header of brackets": safetensors_bytes(b"[" * 1_000_000),
    "header of objects": safetensors_bytes(b'{"a":' * 500_000),
    "tensor twice": safetensors_bytes(f"{{{ENTRY}, {ENTRY}}}".encode()),
    "entry that is a list": safetensors_bytes({"t": [1]}),
    "entry without offsets": safetensors_bytes({"t": {"dtype": "F32", "shape": [4]}}),
    "shape larger than the bytes": safetensors_bytes(one(shape=[5])),
    "shape smaller than the bytes": safetensors_bytes(one(shape=[3])),
    "shape of 2^62": safetensors_bytes(one(shape=[2**62, 2**62])),
    "negative shape": safetensors_bytes(one(shape=[-4])),
    "shape of fractions": safetensors_bytes(one(shape=[4.0])),
    "shape of truths": safetensors_bytes(one(shape=[True, 4])),
    "shape that is a number": safetensors_bytes(one(shape=4)),
    "shape of a hundred ones": safetensors_bytes(one(shape=[1] * 100)),
    "shape beyond 64 bits": safetensors_bytes(one(shape=[10**30])),
    "a number of 100,000 digits": safetensors_bytes(
        b'{"t":{"dtype":"F32","shape":[' + b"9" * 100_000 + b'],"data_offsets":[0,16]}}'
    ),
    "offsets reversed": safetensors_bytes(one(data_offsets=[16, 0])),
    "offsets negative": safetensors_bytes(one(data_offsets=[-16, 0])),
    "one offset": safetensors_bytes(one(data_offsets=[0])),
    "offsets past the end": safetensors_bytes(one(data_offsets=[16, 32])),
    "offsets of NaN": safetensors_bytes(
        b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[NaN,16]}}'
    ),
    "tensors that overlap": safetensors_bytes(two((0, 12), (8, 16))),
    "tensors on top of each other": safetensors_bytes(two((0, 16), (0, 16))),
    "a hole": safetensors_bytes(two((0, 4), (12, 16))),
    "bytes left over": safetensors_bytes(one(), bytes(17)),
    "one byte too few": safetensors_bytes(one(), bytes(15)),
}
SAFETENSORS_UNSUPPORTED: dict[str, bytes] = {
    "unknown dtype": safetensors_bytes(one(dtype="Q7")),
    "dtype that is a list": safetensors_bytes(one(dtype=["F32"])),
}


def _write(path: Path, content: bytes | str) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _index(target: Any) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        index = {"weight_map": {"t": target}}
        _write(directory / "model.safetensors.index.json", json.dumps(index))

    return make


def _linked(target: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        _index("x.safetensors")(directory)
        (directory / "x.safetensors").symlink_to(target)

    return make


def _raw_index(content: str) -> Callable[[Path], None]:
    return lambda directory: _write(directory / "model.safetensors.index.json", content)


def _sparse(directory: Path) -> None:
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 150 << 20))
        file.truncate(200 << 20)


def _twice(directory: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        _write(directory / name, safetensors_bytes(one()))


def _directory(directory: Path) -> None:
    (directory / "model.safetensors").mkdir()


# `secret.safetensors` is a good file beside the model's directory: reading it would succeed.
DIRECTORIES: dict[str, Callable[[Path], None]] = {
    "index with ..": _index("../secret.safetensors"),
    "index with an absolute path": _index("/etc/passwd"),
    "index with a deep ..": _index("a/../../secret.safetensors"),
    "index with a folder": _index("folder/x.safetensors"),
    "index with a backslash": _index("..\\secret.safetensors"),
    "index with two dots": _index(".."),
    "index with one dot": _index("."),
    "index with nothing": _index(""),
    "index with NUL": _index("x\0.safetensors"),
    "index with a number": _index(7),
    "index with a list": _index(["x.safetensors"]),
    "index with a file that is not there": _index("x.safetensors"),
    "index without a map": _raw_index("{}"),
    "index with an empty map": _raw_index('{"weight_map": {}}'),
    "index with a map that is a list": _raw_index('{"weight_map": ["x"]}'),
    "index with a name twice": _raw_index('{"weight_map": {"t": "a", "t": "b"}}'),
    "index of brackets": _raw_index("[" * 1_000_000),
    "link out": _linked("../secret.safetensors"),
    "link to a device": _linked("/dev/zero"),
    "link to itself": _linked("x.safetensors"),
    "link to nothing": _linked("nothing"),
    "pipe": lambda directory: os.mkfifo(directory / "model.safetensors"),
    "folder in place of a file": _directory,
    "header of 150 MB": _sparse,
    "a tensor in two files": _twice,
}
