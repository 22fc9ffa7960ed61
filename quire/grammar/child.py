"""The process that tries a grammar before we do: `python -m quire.grammar.child`.

It reads one JSON object per line and answers each with one. First the vocabulary, then grammars:

  {"text": "start: ...", "seconds": 2.0, "memory": 1073741824, "mask_seconds": 0.5, ...}
  {"error": ""}

Each grammar is compiled and followed for a few tokens under limits on processor time, memory and
stack. One that breaks a limit ends this process, which is how its parent knows.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.grammar.limits import parser_limits
from quire.grammar.vocabulary import Vocabulary, open_vocabulary

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Less than any thread of the parent has, so that what overflows a stack does it here.
_STACK = 1 << 20
_STEPS = 24


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; we end with our input
    tokenizer = open_vocabulary(Vocabulary.from_line(sys.stdin.readline()))
    _answer({"error": ""})
    for line in sys.stdin:
        task = json.loads(line)
        _limit(task["seconds"], task["memory"])
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(_try(tokenizer, task)))  # noqa: B023
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer({"error": found[0]})


def _answer(reply: dict[str, Any]) -> None:
    print(json.dumps(reply), flush=True)


def _limit(seconds: float, memory: int) -> None:
    """From now on `seconds` of processor time and `memory` more bytes; beyond, we are ended."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    whole = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (whole, resource.RLIM_INFINITY))
    held = Path("/proc/self/statm")
    if held.exists():  # elsewhere than on Linux, time is the only fence
        pages = int(held.read_text(encoding="ascii").split()[0])
        allowed = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (allowed, resource.RLIM_INFINITY))


def _try(tokenizer: LLTokenizer, task: dict[str, Any]) -> str:
    """What is wrong with the grammar, or ""."""
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
