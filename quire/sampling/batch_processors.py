"""Logits processors of the whole batch, as operations of the sampler.

There is one object per class and LLM, and every row belongs to its batch, so its time is spent for
all rows. When it fails, each row is tried alone with a fresh object; rows that fail alone end with
its error, and the others go on in another fresh object. That loses nothing, because all that an
object may know of a row (parameters, prompt and output ids) is passed to it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from quire.errors import ProcessorFailed, QuireError
from quire.request import Ints
from quire.sampling.batch_interface import BatchUpdate, LogitsProcessor, MoveDirectionality
from quire.sampling.call_threads import attempt
from quire.sampling.processors import checked_numbers, shaped_as, what_it_said
from quire.sampling.rows import Call, Flags
from quire.sampling.scan import index
from quire.sampling_params import SamplingParams
from quire.step import RowStart
from quire.steps.handles import Handles

Make = Callable[[], LogitsProcessor]


@dataclass(slots=True, eq=False)
class _Member:
    """A row of the batch; `output_ids` grows as the row does."""

    row: int
    params: SamplingParams
    prompt_ids: list[int]
    output_ids: list[int]


class BatchProcessors:
    """The processors of all classes of an LLM, each with its batch; there may be none."""

    def __init__(self, makers: Sequence[Make], handles: Handles | None = None) -> None:
        """`handles` find the requests of rows, whose parameters the processors read."""
        self._handles = handles or Handles()
        self._members: dict[int, _Member] = {}
        batches = [_Batch(make) for make in makers]
        self._changing = [batch for batch in batches if not batch.is_invariant]
        self._invariant = [batch for batch in batches if batch.is_invariant]
        self._errors: dict[int, QuireError] = {}  # by row

    def __bool__(self) -> bool:
        return bool(self._changing or self._invariant)

    @property
    def has_invariant(self) -> bool:
        """Whether some never change the likeliest token: these come after the temperature."""
        return bool(self._invariant)

    def start(self, start: RowStart) -> None:
        if self:
            ids = start.prompt_ids.tolist(), start.output_ids.tolist()
            params = self._handles.request(start.request).params
            self._members[start.row] = _Member(start.row, params, *ids)

    def end(self, rows: Ints) -> None:
        for row in rows.tolist() if self else ():
            self._members.pop(row, None)
            self._errors.pop(row, None)

    def wanted(self, call: Call) -> Flags:
        return np.full(len(call), bool(self._changing), np.bool_)

    def apply(self, logits: Tensor, call: Call) -> None:
        """Edit all lines in place with processors that may change the likeliest token."""
        self._run(self._changing, logits, call)

    def apply_invariant(self, logits: Tensor, call: Call) -> None:
        self._run(self._invariant, logits, call)

    def advance(self, call: Call, tokens: Tensor) -> None:
        """Append the token that each line drew to its row's output ids."""
        for row, token in zip(call.rows.tolist(), tokens.tolist(), strict=True) if self else ():
            self._members[row].output_ids.append(token)

    def why(self, call: Call, failed: Flags) -> dict[int, str]:
        """{line: message} for failed lines whose processor failed."""
        rows = call.rows.tolist()
        lines = np.flatnonzero(failed).tolist() if self._errors else ()
        return {line: str(self._errors[rows[line]]) for line in lines if rows[line] in self._errors}

    def _run(self, batches: Sequence[_Batch], logits: Tensor, call: Call) -> None:
        """Lines of rows that fail become -inf, so that they draw nothing."""
        members = [self._members[row] for row in call.rows.tolist()] if batches else []
        for batch in batches:
            failed = batch.apply(logits, members)
            lines = [line for line, member in enumerate(members) if member.row in failed]
            logits[index(lines, logits.device)] = -torch.inf
            self._errors.update(failed)


class _Batch:
    """One class: its object, and the row at each index of the batch as the object knows it."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._order: list[_Member] = []
        first = make()
        self._processor: LogitsProcessor | None = first
        self._name = type(first).__qualname__
        self.is_invariant = bool(first.is_argmax_invariant())

    def apply(self, logits: Tensor, members: Sequence[_Member]) -> Mapping[int, QuireError]:
        """Edit the logits in place, line i for members[i]; returns the errors of failed rows."""
        outcome = attempt(lambda: self._edit(logits, members))
        if outcome.made is not None:
            logits.copy_(outcome.made)
            return {}
        failed: dict[int, QuireError] = {}
        for line, member in enumerate(members):
            alone = attempt(partial(self._edit_alone, logits[line : line + 1], member))
            if alone.made is not None:
                logits[line] = alone.made[0]
            elif isinstance(alone.error, ProcessorFailed):
                failed[member.row] = alone.error
            else:
                words = what_it_said(alone.error)
                failed[member.row] = ProcessorFailed(f"logits processor {self._name}: {words}")
        self._order, self._processor = [], None  # the next step makes a fresh object
        return failed

    def _edit(self, logits: Tensor, members: Sequence[_Member]) -> Tensor:
        """The edited logits, in the order of `members`."""
        processor = self._processor = self._processor or self._make()
        processor.update_state(self._change_to(members))
        line_of = {id(member): line for line, member in enumerate(members)}
        lines = index([line_of[id(member)] for member in self._order], logits.device)
        given = processor.apply(logits[lines])
        edited = torch.empty_like(logits)
        at = f"logits processor {self._name}"
        edited[lines] = checked_numbers(shaped_as(logits, given, at), at)
        return edited

    def _edit_alone(self, logits: Tensor, member: _Member) -> Tensor:
        processor = self._make()
        processor.update_state(BatchUpdate(1, [], [_added(0, member)], []))
        at = f"logits processor {self._name}, at token {len(member.output_ids)} of the answer"
        return checked_numbers(shaped_as(logits, processor.apply(logits.clone()), at), at)

    def _change_to(self, members: Sequence[_Member]) -> BatchUpdate | None:
        """How the batch must change to hold these rows and no others; None if it need not.

        New rows replace rows that are gone; places that are left free are filled from the end.
        """
        wanted = {id(member) for member in members}
        known = {id(member) for member in self._order}
        new = [member for member in members if id(member) not in known]
        free = [i for i, member in enumerate(self._order) if id(member) not in wanted]
        if not new and not free:
            return None
        added = []
        for member in new:
            at = free.pop(0) if free else len(self._order)
            self._order[at : at + 1] = [member]
            added.append(_added(at, member))
        removed, moved = list(free), []
        while free:
            last = len(self._order) - 1
            if last in free:
                free.remove(last)
            else:
                target = free.pop(0)
                self._order[target] = self._order[last]
                moved.append((last, target, MoveDirectionality.UNIDIRECTIONAL))
            self._order.pop()
        return BatchUpdate(len(self._order), removed, added, moved)


def _added(at: int, member: _Member) -> tuple[int, SamplingParams, list[int], list[int]]:
    return at, member.params, member.prompt_ids, member.output_ids
