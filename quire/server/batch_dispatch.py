"""Sends rows of all batches to the engine: as many at once as it can use, shared out evenly.

The next row comes from the key with the fewest rows in flight, and from that batch of the key which
has the fewest. So a small batch does not wait for a large one, nor for the many batches of another
key. When the engine dies, the rows it held are tried again in halves, without other rows in this
lane, until the row is found that makes it die; the other rows get their answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from quire.base.notes import note
from quire.jobs.input.work import WorkRow
from quire.replicas.suspects import Death, Suspects
from quire.replicas.task import Task
from quire.server.batch_engine import EngineUnavailable
from quire.server.engine_died import EngineDied
from quire.server.limits import AT_ONCE

WINDOWS, FEWEST = 6, 64  # rows in flight: WINDOWS times the engine's capacity, at least FEWEST
MOST_BYTES = 256 << 20  # of all rows in flight, which may hold images; a single row may be larger
PAUSE = 1.0  # seconds before an engine that takes no rows is asked again
MOST_CULPRITS = 3  # with so many culprits and no answer in between, the engine is at fault
REST = 60.0  # seconds without rows for such an engine


class Supply(Protocol):
    """A batch that runs."""

    key_id: str  # whose it is

    def take_row(self) -> WorkRow | None:
        """The next row; None if none is ready."""
        ...

    async def answer(self, row: WorkRow) -> None:
        """Ask the engine and keep its answer; raises EngineDied, EngineUnavailable."""
        ...

    def blame(self, row: WorkRow) -> None:
        """Record that this row makes the engine die."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """A row that the engine has, or had when it died. `number` is unique."""

    number: int
    supply: Supply
    row: WorkRow

    @property
    def suspect(self) -> Task:
        return Task(self.number, cost=0.0)


class Dispatcher:
    """One task that hands rows to the engine until it is cancelled."""

    def __init__(self) -> None:
        self.capacity = 0  # of the engine: rows that run at once
        self._supplies: dict[Supply, int] = {}  # -> number of its rows in flight
        self._by_key: Counter[str] = Counter()  # key id -> the same for all its batches
        self._tasks: dict[asyncio.Task[None], _Ticket] = {}
        self._num_tickets = self._num_bytes = 0  # bytes of the rows in flight
        self._suspects = Suspects()
        self._suspected: dict[int, _Ticket] = {}
        # Rows that the engine had when it died, until `_judge` has looked at them.
        self._died_with: list[tuple[_Ticket, Death]] = []
        self._culprits: list[_Ticket] = []  # blamed only after another row has succeeded
        self._changed = asyncio.Event()
        self._resting: asyncio.TimerHandle | None = None

    def add(self, supply: Supply) -> None:
        self._supplies[supply] = 0
        self._changed.set()

    def wake(self) -> None:
        """To be called when a supply has new rows ready."""
        self._changed.set()

    async def remove(self, supply: Supply) -> None:
        """Give up the supply's rows in flight, and take no more of it."""
        self._supplies.pop(supply, None)
        self._died_with = [one for one in self._died_with if one[0].supply is not supply]
        self._culprits = [ticket for ticket in self._culprits if ticket.supply is not supply]
        self._suspected = {
            number: ticket
            for number, ticket in self._suspected.items()
            if ticket.supply is not supply
        }
        mine = [task for task, ticket in self._tasks.items() if ticket.supply is supply]
        for task in mine:
            task.cancel()
        if mine:
            await asyncio.wait(mine)
        self._changed.set()

    async def run(self) -> None:
        try:
            while True:
                self._changed.clear()
                if self._resting is None and self._hand_out():
                    await asyncio.sleep(0)
                else:
                    await self._changed.wait()
        finally:
            for task in list(self._tasks):
                task.cancel()

    def _hand_out(self) -> bool:
        """Send rows to the engine, at most AT_ONCE; True if more may be sent at once."""
        if self._died_with or len(self._suspects):
            if not self._tasks:
                self._judge()
                self._try_group()
            return False
        room = max(FEWEST, WINDOWS * self.capacity) - len(self._tasks)
        is_much = room > AT_ONCE
        room, waiting = min(room, AT_ONCE), set(self._supplies)
        while room > 0 and waiting and self._num_bytes < MOST_BYTES:
            supply = min(waiting, key=self._num_in_flight)
            row = supply.take_row()
            if row is None:
                waiting.remove(supply)
                continue
            self._num_tickets += 1
            self._start(_Ticket(self._num_tickets, supply, row))
            room -= 1
        if not self._tasks:
            self._confirm_culprits()  # no other row is left to prove that the engine is well
        return is_much and room == 0

    def _num_in_flight(self, supply: Supply) -> tuple[int, int]:
        return self._by_key[supply.key_id], self._supplies[supply]

    def _start(self, ticket: _Ticket) -> None:
        self._supplies[ticket.supply] += 1
        self._by_key[ticket.supply.key_id] += 1
        self._num_bytes += ticket.row.size
        task = asyncio.create_task(self._answered(ticket))
        self._tasks[task] = ticket
        task.add_done_callback(self._ended)

    async def _answered(self, ticket: _Ticket) -> None:
        while ticket.supply in self._supplies:
            try:
                await ticket.supply.answer(ticket.row)
            except EngineDied as died:
                self._died_with.append((ticket, died.death))
                return
            except EngineUnavailable:
                await asyncio.sleep(PAUSE)
                continue
            self._suspected.pop(ticket.number, None)
            self._confirm_culprits()
            return

    def _ended(self, task: asyncio.Task[None]) -> None:
        ticket = self._tasks.pop(task)
        self._num_bytes -= ticket.row.size
        self._by_key[ticket.supply.key_id] -= 1
        if ticket.supply in self._supplies:
            self._supplies[ticket.supply] -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            # A supply records every error of a row, so this error is a bug.
            note(f"a row of a batch could not be kept: {type(error).__name__}")
        self._changed.set()

    def _judge(self) -> None:
        """After a death, with no rows in flight: update the suspects, and keep a found culprit."""
        if not self._died_with:
            return
        note(f"the engine died with {len(self._died_with)} rows of batches; they are tried again")
        held, self._died_with = self._died_with, []
        self._suspected |= {ticket.number: ticket for ticket, _ in held}
        culprit = self._suspects.accuse([ticket.suspect for ticket, _ in held], held[0][1])
        found = None if culprit is None else self._suspected.pop(culprit.number, None)
        if found is not None:
            self._culprits.append(found)
        if len(self._culprits) >= MOST_CULPRITS:
            self._rest()

    def _rest(self) -> None:
        """The engine dies with every row, so no row is at fault: blame none, and wait a while."""
        note(f"the engine dies with every row; batches go on in {REST:g} seconds")
        cleared, self._culprits, self._suspects = self._culprits, [], Suspects()
        self._suspected |= {ticket.number: ticket for ticket in cleared}
        self._suspects.suspect([ticket.suspect for ticket in self._suspected.values()])
        self._resting = asyncio.get_running_loop().call_later(REST, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self._changed.set()

    def _try_group(self) -> None:
        if self._resting is not None:
            return
        for suspect in self._suspects.take() or ():
            if (ticket := self._suspected.get(suspect.number)) is not None:
                self._start(ticket)
        if not self._tasks:
            self._changed.set()

    def _confirm_culprits(self) -> None:
        culprits, self._culprits = self._culprits, []
        for ticket in culprits:
            ticket.supply.blame(ticket.row)
