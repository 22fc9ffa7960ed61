"""The process that searches for a user's pattern: `python -m quire.evals.scoring.pattern_child`.

It reads a JSON object per line, and writes one for each. First comes the pattern, then texts:

  {"pattern": "answer is (\\\\d+)", "seconds": 2.0}      {}
  {"text": "the answer is 4", "last": false}           {"found": "4"}

A search that takes more than `seconds` of processor time ends this process, which the parent
notices. Python's search cannot be stopped in another way.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import Any

from quire.evals.scoring.text import extract


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes stdin
    setting = json.loads(sys.stdin.readline())
    pattern = re.compile(setting["pattern"])
    _answer({})
    for line in sys.stdin:
        task = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, setting["seconds"])
        found = extract(pattern, task["text"], last=task["last"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer({"found": found})


def _answer(reply: dict[str, Any]) -> None:
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
