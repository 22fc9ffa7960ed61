"""Turns all errors of reading or compiling a row's grammar into refusals of that row.

A row may hold anything, and a grammar that breaks our code must fail only its own row. So all
errors of reading or compiling it become InvalidGrammar, except InvalidRequest, which is meant as it
is. Other errors are faults of quire or of llguidance, and the message says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.errors import InvalidGrammar, InvalidRequest

# Errors about the process, not about the row.
_NOT_THE_ROWS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_MAX_SHOWN = 200


@contextmanager
def errors_as_refusals(kind: str) -> Iterator[None]:
    """A context that lets InvalidRequest pass, and turns other errors into InvalidGrammar."""
    try:
        yield
    except InvalidRequest:
        raise
    except _NOT_THE_ROWS:
        raise
    except BaseException as error:  # a panic in Rust code is not an Exception
        said = f"{type(error).__name__}: {error}"[:_MAX_SHOWN]
        raise InvalidGrammar(
            f"{kind}: it could not be compiled, by a fault of quire or llguidance that is worth "
            f"reporting ({said}); write it in another way",
            parameter=kind,
        ) from error
