"""Reads quire.h for ctypes: structs and functions are declared once, in C.

The header uses only what is understood here: pointers and 64-bit numbers (a float only as an
argument), structs of these, and functions as `QUIRE_EXPORT kind name(kind name, ...);`.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache

from quire.backends.cpu.native.build import SOURCES

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\};", re.DOTALL)
_FUNCTION = re.compile(r"QUIRE_EXPORT (\w+) (\w+)\(([^()]*)\);")
_NUMBERS: dict[str, type[ctypes._CData]] = {
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
}


@cache
def _text() -> str:
    return _COMMENT.sub("", (SOURCES / "quire.h").read_text(encoding="utf-8"))


@cache
def struct(name: str) -> type[ctypes.Structure]:
    """The struct of that name as a class that takes its fields as keywords."""
    [body] = [body for found, body in _STRUCT.findall(_text()) if found == name]
    fields: list[tuple[str, type[ctypes._CData]]] = []
    for declared in filter(str.strip, body.split(";")):
        of = declared.split()[0]  # int64_t type, cache_type; const float *cos, *sin
        for one in declared.split(","):
            fields.append((one.split()[-1].lstrip("*"), _kind(of, one)))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _kind(of: str, declared: str) -> type[ctypes._CData]:
    """The ctypes type of a field or of an argument that is no struct; a pointer is an address."""
    return ctypes.c_void_p if "*" in declared else _NUMBERS[of]


def _argument(declared: str) -> type[ctypes._CData]:
    words = declared.replace("*", " ").split()
    if "struct" in words:
        return ctypes.POINTER(struct(words[words.index("struct") + 1]))
    return _kind(words[0], declared)


def declare(library: ctypes.CDLL) -> None:
    """Declare arguments and results of all functions of the library."""
    for gives, name, takes in _FUNCTION.findall(_text()):
        function = getattr(library, name)
        function.restype = None if gives == "void" else _NUMBERS[gives]
        function.argtypes = [] if takes == "void" else [_argument(one) for one in takes.split(",")]
