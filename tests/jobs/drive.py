"""The command `quire` with an engine that has no model: `python -m tests.jobs.drive run ...`.

Everything else is the real thing. A first argument MODULE:FACTORY names another engine.
"""

from __future__ import annotations

import sys

from quire.cli import main
from quire.jobs import job
from quire.jobs.supervise import supervisor

FAKE = "tests.jobs.fake_engine:make"


def command(engine: str = FAKE) -> tuple[str, ...]:
    return (*supervisor.COMMAND, "--engine", engine)


if __name__ == "__main__":
    engine = sys.argv.pop(1) if ":" in sys.argv[1] else FAKE
    job.COMMAND = command(engine)  # type: ignore[assignment]
    main()
