"""The door between what a row holds and what we make of it.

A row may hold anything, and a grammar that breaks us must cost its own row and no other. So
whatever comes out of reading or compiling one is InvalidGrammar, or another error of ours that
was meant; the rest is a fault of quire or of llguidance, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.errors import InvalidGrammar, InvalidRequest

# These are about the process, not about the row.
_NOT_THE_ROWS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_MAX_SHOWN = 200


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """Let InvalidRequest pass, and make anything else the refusal of a grammar of this kind."""
    try:
        yield
    except InvalidRequest:
        raise
    except _NOT_THE_ROWS:
        raise
    except BaseException as error:  # a panic of an extension is not even an Exception
        said = f"{type(error).__name__}: {error}"[:_MAX_SHOWN]
        raise InvalidGrammar(
            f"{kind}: it could not be compiled, by a fault of quire or llguidance that is worth "
            f"reporting ({said}); write it in another way",
            parameter=kind,
        ) from error
