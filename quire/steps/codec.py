"""Plans and results as bytes and back; decoding runs no code from the bytes.

The bytes begin with one that names the class; the fields follow in msgspec's MessagePack, which
checks their types. An array is the number of its type, its shape and its bytes; it is decoded as a
copy. The executor's Handles are not sent, so masks must be complete before a plan is encoded.
"""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec
import numpy as np

from quire.step import StepPlan, StepResult
from quire.steps.ranked import RankAdapter, RankPlan, RankResult

# Never change this order: the index is what stands in the bytes.
_WHOLE = (StepPlan, StepResult, RankPlan, RankResult, RankAdapter)
_DTYPES = tuple(np.dtype(name) for name in ("int32", "float32", "uint32", "int64", "uint8"))
_NUMBER_OF = {dtype: number for number, dtype in enumerate(_DTYPES)}


class BadStep(ValueError):
    """Bytes that are no plan and no result."""


def encode(value: StepPlan | StepResult | RankPlan | RankResult | RankAdapter) -> bytes:
    return bytes((_WHOLE.index(type(value)),)) + _encoder.encode(value)


def decode(data: bytes | memoryview) -> Any:
    """The plan or result in these bytes; BadStep if there is none."""
    if not data or data[0] >= len(_DECODERS):
        raise BadStep("not a step: it begins with no class of one")
    try:
        return _DECODERS[data[0]].decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadStep(f"not a step: {error}") from error


def _written(value: Any) -> tuple[int, tuple[int, ...], memoryview]:
    number = _NUMBER_OF.get(value.dtype) if type(value) is np.ndarray else None
    if number is None:
        raise TypeError(f"{getattr(value, 'dtype', type(value))} is not part of a step")
    return number, value.shape, np.ascontiguousarray(value).data


def _read(kind: Any, written: Any) -> np.ndarray[Any, np.dtype[Any]]:
    number, shape, data = msgspec.convert(written, tuple[int, tuple[int, ...], bytes])
    if not 0 <= number < len(_DTYPES) or prod(shape) * _DTYPES[number].itemsize != len(data):
        raise ValueError(f"an array of {len(data)} bytes, type {number}, shape {shape}")
    # A copy, because torch takes only arrays that it may write to.
    return np.frombuffer(bytearray(data), _DTYPES[number]).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_written)
_DECODERS = tuple(msgspec.msgpack.Decoder(kind, dec_hook=_read) for kind in _WHOLE)
