"""The command `quire` with the fake engine, and workers that watch each other more closely: a beat
each tenth of a second, a lease of two seconds, chunks of 50 rows."""

from __future__ import annotations

from quire.cli import main
from quire.jobs import job
from quire.jobs.join import claims, setup, worker
from tests.jobs import drive

if __name__ == "__main__":
    claims.BEAT_SECONDS, claims.LEASE_SECONDS = 0.1, 2.0
    setup.ROWS = 50
    setup.LOOK_SECONDS = worker.LOOK_SECONDS = 0.2  # type: ignore[attr-defined]
    job.COMMAND = drive.command()  # type: ignore[assignment,attr-defined]
    main()
