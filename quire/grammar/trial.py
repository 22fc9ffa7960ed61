"""Trial: tries a grammar in a process that can be killed, before it is compiled in this process.

A compile cannot be interrupted, and a matcher cannot be sent to another process. So a grammar that
may be expensive is compiled twice: there under limits, then here, where it is known to be fast
enough. The process stays for the next grammar, and ends with its input, and so with us.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import threading

from quire.base.line_child import LineChild
from quire.errors import InvalidGrammar
from quire.grammar.limits import MIB, GrammarLimits
from quire.grammar.vocabulary import Vocabulary

# Until the child has read the vocabulary, which depends on no grammar and may take long.
_START_SECONDS = 60.0
_CHILD = "quire.grammar.child"


class Trial:
    """The child process, started when first needed. It tries one grammar at a time."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self._vocabulary, self._limits = vocabulary, limits
        self._lock = threading.Lock()
        self._child: LineChild | None = None
        self._held: int | None = None  # address space of the child before its next grammar

    def run(self, kind: str, text: str) -> str:
        """llguidance's error for the grammar, or "".

        Raises InvalidGrammar if it took too much time, memory or stack, and RuntimeError if the
        child failed on it in another way.
        """
        limits = self._limits
        task = {
            "text": text,
            "seconds": limits.compile_seconds,
            "memory": limits.trial_memory,
            "mask_seconds": limits.mask_seconds,
            "lexer_states": limits.lexer_states,
        }
        with self._lock:
            child = self._started()
            reply = child.exchange(json.dumps(task), limits.wall_seconds)
            if reply is None:
                raise InvalidGrammar(
                    f"{kind}: {self._why_it_died()}; make it simpler", parameter=kind
                )
            self._held = reply["held"]
            if reply["is_last"]:
                self._end(child)
        error = str(reply["error"])
        if error.startswith("fault: "):
            raise RuntimeError(error[7:])
        if error.startswith("slow: "):
            raise InvalidGrammar(
                f"{kind}: following it takes {error[6:]} s for a single token, and at most "
                f"{limits.mask_seconds} s are given; make it simpler",
                parameter=kind,
            )
        return error

    def start(self) -> None:
        """Start the child now, not only when it is first needed."""
        with self._lock:
            self._started()

    def close(self) -> None:
        with self._lock:
            if self._child is not None:
                self._end(self._child)

    def _started(self) -> LineChild:
        if self._child is not None and self._child.is_alive():
            return self._child
        try:
            self._child = LineChild(_CHILD, RAYON_NUM_THREADS="1")
        except OSError as error:  # no memory, or no more processes
            raise _not_started(str(error)) from None
        ready = self._child.exchange(self._vocabulary.to_line(), _START_SECONDS)
        if ready is None:
            self._end(self._child)
            raise _not_started(f"see whether `{sys.executable} -m {_CHILD}` runs")
        self._held = ready["held"]
        return self._child

    def _why_it_died(self) -> str:
        """End the child, and return why it failed, judged by its exit status."""
        child, limits = self._child, self._limits
        if child is None:
            return "its trial was ended"
        status = child.status()
        self._end(child)
        if status == -signal.SIGSEGV:
            return "it is too large, or nested too deeply, for the stack it is given"
        if status in (-signal.SIGABRT, -signal.SIGKILL, 1):
            return self._short_of_memory(killed=status == -signal.SIGKILL)
        return f"compiling it takes more than {limits.compile_seconds:g} s"

    def _short_of_memory(self, *, killed: bool) -> str:
        """The error for too little memory, or for a limit on our process that is in the way."""
        wanted, set_here = self._limits.trial_memory, _limits_set_here()
        left = resource.getrlimit(resource.RLIMIT_AS)[1] - (self._held or 0)
        if resource.RLIMIT_AS in set_here and left < wanted:
            return (
                f"compiling it needs more than the {max(left, 0) // MIB} MiB that the limit of "
                f"{set_here[resource.RLIMIT_AS]} leaves"
            )
        if killed and resource.RLIMIT_CPU in set_here:
            return f"compiling it came to the limit of {set_here[resource.RLIMIT_CPU]}"
        return f"compiling it needs more than {wanted // MIB} MiB"

    def _end(self, child: LineChild) -> None:
        self._child = None
        child.end()


def _not_started(why: str) -> InvalidGrammar:
    set_here = " and ".join(_limits_set_here().values())
    way_out = f"raise the limit of {set_here}, or " if set_here else ""
    return InvalidGrammar(
        f"the process that tries grammars before they are compiled did not start; {way_out}{why}",
        parameter="structured_outputs",
    )


def _limits_set_here() -> dict[int, str]:
    """The limits that this process was started under, which the child inherits."""
    space, seconds = (resource.getrlimit(n)[1] for n in (resource.RLIMIT_AS, resource.RLIMIT_CPU))
    found = {}
    if space != resource.RLIM_INFINITY:
        found[resource.RLIMIT_AS] = f"{space // MIB:,} MiB of address space (ulimit -v)"
    if seconds != resource.RLIM_INFINITY:
        found[resource.RLIMIT_CPU] = f"{seconds:,} s of processor time (ulimit -t)"
    return found
