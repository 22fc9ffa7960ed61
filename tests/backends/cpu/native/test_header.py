"""The header as Python reads it."""

from __future__ import annotations

import ctypes
import re

from quire.backends.cpu.native.build import SOURCES
from quire.backends.cpu.native.header import struct

EXPORTED = re.compile(r"QUIRE_EXPORT\s+\w+\s+(quire_\w+)\(")


def test_every_exported_function_is_declared(library: ctypes.CDLL) -> None:
    names = EXPORTED.findall((SOURCES / "quire.h").read_text(encoding="utf-8"))
    assert len(names) > 20
    for name in names:
        assert getattr(library, name).argtypes is not None, name


def test_arguments_are_of_the_kinds_that_c_has(library: ctypes.CDLL) -> None:
    word, address, number = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    norm = library.quire_layer_norm
    assert norm.argtypes == [word, word, *[address] * 4, number, address]
    assert norm.restype is None
    assert library.quire_num_threads.argtypes == []
    assert library.quire_num_threads.restype is word
    [product] = library.quire_multiply.argtypes
    assert product is ctypes.POINTER(struct("quire_product"))


def test_the_fields_of_a_struct_stand_in_their_order() -> None:
    fields = dict(struct("quire_texts")._fields_)
    assert list(fields)[5:11] == ["v_stride", "window", "scale", "num_texts", "starts", "q"]
    assert fields["scale"] is ctypes.c_double
    assert fields["window"] is ctypes.c_int64
    assert fields["slopes"] is ctypes.c_void_p
    assert ctypes.sizeof(struct("quire_attention")) == 8 * len(struct("quire_attention")._fields_)
