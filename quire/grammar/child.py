"""The process that tries grammars before we use them: `python -m quire.grammar.child`.

It reads one JSON object per line and answers each with one: first the vocabulary, then grammars:

  {"text": "start: ...", "seconds": 2.0, "memory": 1073741824, "mask_seconds": 0.5, ...}
  {"error": "", "held": 224858112, "is_last": false}

Each grammar is compiled and followed for a few tokens under limits on processor time, memory and
stack. A grammar that breaks a limit ends this process, and so its parent knows. `held` is the size
of the address space before the next grammar. Limits that the process was started under stay; if the
time they leave is too short for another grammar, the answer says that it is the last.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.base.system import held_memory, lower_limit
from quire.grammar.limits import parser_limits
from quire.grammar.vocabulary import Vocabulary, open_vocabulary

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Smaller than the stacks of the parent's threads, so that an overflow happens here first.
_STACK = 1 << 20
_STEPS = 24
_SPARE_SECONDS = 2  # the timer is the real limit; RLIMIT_CPU is this much later


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C; we end with our input
    # Read as bytes, because it is UTF-8, whatever the locale says about stdin.
    tokenizer = open_vocabulary(Vocabulary.from_line(sys.stdin.buffer.readline()))
    _answer("", is_last=False)
    for line in sys.stdin:
        task = json.loads(line)
        _limit(task["seconds"], task["memory"])
        found: list[str] = []
        thread = threading.Thread(target=_try_in_thread, args=(tokenizer, task, found))
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        is_last = _seconds_used() + task["seconds"] + _SPARE_SECONDS > _hard(resource.RLIMIT_CPU)
        _answer(found[0], is_last=is_last)
        if is_last:
            return


def _answer(error: str, *, is_last: bool) -> None:
    print(json.dumps({"error": error, "held": held_memory(), "is_last": is_last}), flush=True)


def _limit(seconds: float, memory: int) -> None:
    """Allow `seconds` more of processor time and `memory` more bytes; beyond that we are killed."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    lower_limit(resource.RLIMIT_CPU, int(_seconds_used() + seconds) + _SPARE_SECONDS)
    held = held_memory()
    if held is not None:  # on other systems than Linux, only time is limited
        lower_limit(resource.RLIMIT_AS, held + memory)


def _hard(limit: int) -> float:
    hard = resource.getrlimit(limit)[1]
    return math.inf if hard == resource.RLIM_INFINITY else hard


def _seconds_used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _try_in_thread(tokenizer: LLTokenizer, task: dict[str, Any], found: list[str]) -> None:
    try:
        found.append(_try(tokenizer, task))
    except MemoryError:
        os._exit(1)  # as if the limit had been met elsewhere
    except BaseException as error:  # a panic, or a fault of ours: reported for this grammar only
        found.append(f"fault: {type(error).__name__}: {error}")


def _try(tokenizer: LLTokenizer, task: dict[str, Any]) -> str:
    """The error of the grammar, or ""."""
    from llguidance import LLMatcher

    limits = parser_limits(task["lexer_states"])
    matcher = LLMatcher(tokenizer, task["text"], log_level=0, limits=limits)
    chooser = random.Random(0)
    for _ in range(_STEPS):
        if matcher.is_error() or matcher.is_stopped():
            break
        started = time.thread_time()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if not matcher.is_error():
            matcher.consume_token(int(allowed[chooser.randrange(len(allowed))]))
        took = time.thread_time() - started
        if took > task["mask_seconds"]:
            return f"slow: {took:.2f}"
    return matcher.get_error()


if __name__ == "__main__":
    main()
