"""How a command ends: one line on stderr and a code that a script can act on.

0 done · 1 a bug of ours · 2 usage, or a job that changed · 3 finished, some rows failed ·
69 model or device not usable · 73 another writer holds the job · 74 read or write error ·
75 stopped, the same command continues · 130 interrupted · 141 stdout's reader has left. The message
of an error already names the rule, the value and the way out.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from quire.cli.terminal import drop_from_now_on, leave_nothing_unsaid, reader_is_gone, say
from quire.errors import EngineError, JobLocked, JobStopped, ModelError, QuireError
from quire.safe_text import without_secrets

BUG, USAGE, SOME_FAILED, UNAVAILABLE, IO_ERROR, INTERRUPTED = 1, 2, 3, 69, 74, 130
LOCKED, STOPPED = 73, 75
READER_LEFT = 141  # as a shell reports a program that SIGPIPE ended


def code_of(error: QuireError) -> int:
    """The exit code of an error; 2 (usage) unless it is about the model, the device or a job."""
    if isinstance(error, JobLocked):
        return LOCKED
    if isinstance(error, JobStopped):
        return STOPPED
    return UNAVAILABLE if isinstance(error, ModelError | EngineError) else USAGE


def fail(message: str, code: int) -> NoReturn:
    say(f"quire: {message}", err=True)
    cluster = sys.modules.get("quire.replicas.ray_engine")
    if cluster is not None and cluster.head_is_lost():
        # Ray's exit handler waits for the head, and then ends the process with its own code.
        leave_nothing_unsaid()
        os._exit(code)
    sys.exit(code)


def save_traceback() -> str:
    """The name of a file with the traceback, or its text if no file can be written."""
    import tempfile
    import traceback

    text = without_secrets(traceback.format_exc())
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="quire-traceback-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        return f"this, which no file could be made for ({error}):\n{text}"
    return file.name


def _described(error: OSError) -> str:
    """The file and the error, without the system's error number."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def _fail_to_write(error: OSError) -> NoReturn:
    """Nothing is said to a pipe whose reader has left, as in `quire show JOB | head -1`."""
    if error.errno == errno.EPIPE and reader_is_gone():
        drop_from_now_on(1)
        sys.exit(READER_LEFT)
    fail(_described(error), IO_ERROR)


@contextmanager
def reported() -> Iterator[None]:
    """Turn every exception inside the block into a line on stderr and an exit code."""
    try:
        yield
    except QuireError as error:
        fail(str(error), code_of(error))
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except OSError as error:
        _fail_to_write(error)
    except SystemExit as ended:
        # The library of the command line ends with 1, in silence, at any pipe that breaks.
        cause = ended.__context__
        if ended.code == BUG and isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            _fail_to_write(cause)
        raise
    except Exception as error:  # an unexpected error must be readable, too
        fail(
            f"a bug: {type(error).__name__}: {error} (please report it with {save_traceback()})",
            BUG,
        )
    finally:
        leave_nothing_unsaid()
