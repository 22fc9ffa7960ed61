"""A run's steps in a file, and the same steps again on any executor.

The file is a line that says what it is, then for each plan its bytes and those of its result, each
behind its length. Replaying submits the plans one after the other: an executor of the same model
must give the same results, whichever device, process or version of the code it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from quire.errors import CorruptJob
from quire.executor.executor import Executor, ExecutorFacts, PendingStep
from quire.step import StepPlan, StepResult
from quire.steps.codec import BadStep, decode, encode
from quire.steps.handles import Handles

_HEADER = b"quire steps 2\n"
_LENGTH = struct.Struct("<Q")


class RecordingExecutor:
    """Does what the executor inside it does, and writes down plans and results."""

    def __init__(self, inner: Executor, file: BinaryIO) -> None:
        self._inner, self._file = inner, file
        inner.handles.automata = None  # a plan in a file has masks, and no grammar to follow
        file.write(_HEADER)

    @property
    def handles(self) -> Handles:
        return self._inner.handles

    def start(self) -> ExecutorFacts:
        return self._inner.start()

    def submit(self, plan: StepPlan) -> PendingStep:
        if plan.masks is not None:
            self.handles.wait_for(plan.masks)
        return _Recorded(encode(plan), self._inner.submit(plan), self._file)

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()


class _Recorded:
    """A plan on its way; written when its result is there, so that the file has both or none."""

    def __init__(self, plan: bytes, pending: PendingStep, file: BinaryIO) -> None:
        self._plan, self._pending, self._file = plan, pending, file

    def result(self) -> StepResult:
        result = self._pending.result()
        for data in (self._plan, encode(result)):
            self._file.write(_LENGTH.pack(len(data)) + data)
        return result


def recorded_steps(path: Path) -> Iterator[tuple[StepPlan, StepResult]]:
    """The plans of a file with their results."""
    with path.open("rb") as file:
        if file.read(len(_HEADER)) != _HEADER:
            raise CorruptJob(f"{path} holds no recorded steps.")
        while True:
            plan = _next(file, path)
            if plan is None:
                return
            result = _next(file, path)
            if not isinstance(plan, StepPlan) or not isinstance(result, StepResult):
                raise CorruptJob(f"{path} ends in the middle of a step.")
            yield plan, result


def replay(path: Path, executor: Executor) -> Iterator[tuple[StepResult, StepResult]]:
    """Run the plans of a file on an executor that was started: (recorded, now) of each."""
    for plan, recorded in recorded_steps(path):
        yield recorded, executor.submit(plan).result()


def _next(file: BinaryIO, path: Path) -> StepPlan | StepResult | None:
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = file.read(min(length, path.stat().st_size))
    try:
        step: StepPlan | StepResult = decode(data)
    except BadStep as error:
        raise CorruptJob(f"{path}: {error}") from error
    return step
