"""Plans and results as bytes and back, without running anything that the bytes say.

One tag a value, then the value: None, truth, integers, floats, text, tuples, dicts, numpy arrays
of known types, and the dataclasses of step.py, each by its number in CLASSES and its fields in
order. Arrays begin at a multiple of 8 bytes and come back as views of one copy of the bytes. The
executor's Handles do not travel: masks must be filled before a plan is written.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any

import numpy as np

from quire.params.row_sampling import RowSampling
from quire.step import (
    Assigned,
    Candidates,
    Chosen,
    DecodeRows,
    DrawnScores,
    Encode,
    Guessing,
    Masks,
    MediaPart,
    PrefixGroup,
    RowStart,
    Scores,
    Slice,
    StepPlan,
    StepResult,
    Targets,
)
from quire.steps.ranked import AdapterPart, OwnPart, RankAdapter, RankPlan, RankResult

# In this order for ever: the place is what stands in the bytes.
CLASSES: tuple[type[Any], ...] = (
    StepPlan,
    StepResult,
    RowStart,
    RowSampling,
    Slice,
    Targets,
    DecodeRows,
    Assigned,
    Chosen,
    PrefixGroup,
    Masks,
    Scores,
    DrawnScores,
    Candidates,
    Encode,
    MediaPart,
    RankPlan,
    RankResult,
    AdapterPart,
    RankAdapter,
    Guessing,
    OwnPart,
)
_WHOLE = (StepPlan, StepResult, RankPlan, RankResult, RankAdapter)  # what bytes may be
DTYPES = tuple(np.dtype(name) for name in ("int32", "float32", "uint32", "int64", "uint8"))
MOST_DEPTH = 16  # of values inside values; a plan has 5

_NUMBER = {kind: number for number, kind in enumerate(CLASSES)}
_FIELDS = [tuple(f.name for f in fields(kind)) for kind in CLASSES]
_DTYPE = {dtype: number for number, dtype in enumerate(DTYPES)}
_NONE, _FALSE, _TRUE, _INT, _LARGE, _FLOAT, _TEXT, _TUPLE, _DICT, _ARRAY, _OBJECT = range(11)
_int, _float, _length = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<I")
_ALIGNED = 8


class BadStep(ValueError):
    """Bytes that are no plan and no result."""


def encode(value: StepPlan | StepResult | RankPlan | RankResult | RankAdapter) -> bytes:
    out = bytearray()
    _write(out, value)
    return bytes(out)


def decode(data: bytes | memoryview) -> Any:
    """The plan or result that these bytes are; BadStep if they are none."""
    reader = _Reader(memoryview(bytearray(data)))  # torch takes no array that it may not write to
    try:
        value = reader.read(0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise BadStep(f"not a step: {error}") from error
    if reader.at != len(data) or not isinstance(value, _WHOLE):
        raise BadStep("not a step: it ends early, or is something else")
    return value


def _write(out: bytearray, value: Any) -> None:
    kind = type(value)
    if value is None:
        out.append(_NONE)
    elif kind is bool:
        out.append(_TRUE if value else _FALSE)
    elif kind is int:
        _write_int(out, value)
    elif kind is float:
        out.append(_FLOAT)
        out += _float.pack(value)
    elif kind is str:
        data = value.encode("utf-8", "surrogatepass")
        out.append(_TEXT)
        out += _length.pack(len(data)) + data
    elif kind is tuple or kind is dict:
        out.append(_TUPLE if kind is tuple else _DICT)
        out += _length.pack(len(value))
        for one in value if kind is tuple else (x for pair in value.items() for x in pair):
            _write(out, one)
    elif kind is np.ndarray:
        _write_array(out, value)
    elif kind in _NUMBER:
        number = _NUMBER[kind]
        out += bytes((_OBJECT, number))
        for name in _FIELDS[number]:
            _write(out, getattr(value, name))
    else:
        raise TypeError(f"{kind.__name__} is not part of a step")


def _write_int(out: bytearray, value: int) -> None:
    if -(2**63) <= value < 2**63:
        out.append(_INT)
        out += _int.pack(value)
        return
    out.append(_LARGE)  # a noise key, which has 64 bits and no sign
    out += struct.pack("<Q", value)


def _write_array(out: bytearray, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    number = _DTYPE.get(array.dtype)
    if number is None:
        raise TypeError(f"arrays of {array.dtype} are not part of a step")
    out += bytes((_ARRAY, number, array.ndim))
    for size in array.shape:
        out += _length.pack(size)
    out += bytes(-len(out) % _ALIGNED)
    out += np.ascontiguousarray(array).tobytes()


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def read(self, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise BadStep("not a step: values inside values, too deep")
        tag = self._byte()
        if tag in (_NONE, _FALSE, _TRUE):
            return (None, False, True)[tag]
        if tag == _INT:
            return _int.unpack(self._take(8))[0]
        if tag == _LARGE:
            return struct.unpack("<Q", self._take(8))[0]
        if tag == _FLOAT:
            return _float.unpack(self._take(8))[0]
        if tag == _TEXT:
            return str(self._take(self._size()), "utf-8", "surrogatepass")
        if tag == _TUPLE:
            return tuple(self.read(depth + 1) for _ in range(self._size()))
        if tag == _DICT:
            return {self.read(depth + 1): self.read(depth + 1) for _ in range(self._size())}
        if tag == _ARRAY:
            return self._array()
        if tag == _OBJECT:
            number = self._byte()
            return CLASSES[number](*(self.read(depth + 1) for _ in _FIELDS[number]))
        raise BadStep(f"not a step: tag {tag}")

    def _array(self) -> np.ndarray[Any, np.dtype[Any]]:
        dtype, ndim = DTYPES[self._byte()], self._byte()
        shape = tuple(_length.unpack(self._take(4))[0] for _ in range(ndim))
        self._take(-self.at % _ALIGNED)
        count = 1
        for size in shape:
            count *= size
        return np.frombuffer(self._take(count * dtype.itemsize), dtype).reshape(shape)

    def _size(self) -> int:
        """A number of things that follow, each of a byte at least."""
        size: int = _length.unpack(self._take(4))[0]
        if size > len(self.data) - self.at:
            raise BadStep("not a step: it ends early")
        return size

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self.data):
            raise BadStep("not a step: it ends early")
        piece, self.at = self.data[self.at : end], end
        return piece
