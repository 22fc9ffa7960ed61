"""quire.h as ctypes needs it: structs and functions are declared in C, once, and read from there.

The header keeps to what is read here: pointers and numbers of 64 bits (a float only as an
argument), structs of these, and exported functions as `QUIRE_EXPORT kind name(kind name, ...);`.
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
    """The struct of that name, as a class whose fields are keywords."""
    [body] = [body for found, body in _STRUCT.findall(_text()) if found == name]
    fields: list[tuple[str, type[ctypes._CData]]] = []
    for declared in filter(str.strip, body.split(";")):
        of = declared.split()[0]  # int64_t type, cache_type; const float *cos, *sin
        for one in declared.split(","):
            fields.append((one.split()[-1].lstrip("*"), _kind(of, one)))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _kind(of: str, declared: str) -> type[ctypes._CData]:
    """What a field is, or an argument that is no struct; any pointer is an address."""
    return ctypes.c_void_p if "*" in declared else _NUMBERS[of]


def _argument(declared: str) -> type[ctypes._CData]:
    words = declared.replace("*", " ").split()
    if "struct" in words:
        return ctypes.POINTER(struct(words[words.index("struct") + 1]))
    return _kind(words[0], declared)


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes what all functions of the library take and give."""
    for gives, name, takes in _FUNCTION.findall(_text()):
        function = getattr(library, name)
        function.restype = None if gives == "void" else _NUMBERS[gives]
        function.argtypes = [] if takes == "void" else [_argument(one) for one in takes.split(",")]
