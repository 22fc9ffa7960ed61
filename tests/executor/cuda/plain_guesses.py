"""The ends of a step whose rows guess, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.executor.cuda.device_ops import Feed
from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.graphs import GuessPlaces
from quire.scheduler.guesses import continuation, look_up
from quire.steps.row_schema import DROPPED, RESTS, Column


class PlainGuesses:
    """What PlainOps (plain.py) does for such steps."""

    columns: DeviceColumns

    def lines(self, rows: Tensor, live: Tensor, tokens: Tensor, position: Tensor) -> Feed:
        raise NotImplementedError

    def feed_guesses(
        self, places: GuessPlaces, shortest: int, longest: int, prefixes: object
    ) -> Feed:
        ints, each = self.columns.ints, 1 + places.count
        rows = places.rows.long().repeat_interleave(each)
        live, tokens = self.columns.live(rows), ints[Column.LAST_TOKEN][rows]
        nth = torch.arange(each, device=rows.device).repeat(places.size)
        position = ints[Column.POSITION][rows] + nth
        for place, row in enumerate(places.rows.tolist()):
            first, length = place * each, int(places.lengths[place])
            left = int(ints[Column.MAX_TOKENS, row] - ints[Column.NUM_OUTPUTS, row])
            live[first + max(left, 1) : first + each] = False
            begin, agreed = 0, 0
            if live[first] and length:
                known = places.histories[place, :length].cpu().numpy()
                begin, agreed = look_up(known, shortest, longest)
            if agreed:
                guesses = continuation(known, begin, places.count)
                tokens[first + 1 : first + each] = torch.from_numpy(guesses).to(tokens)
            else:
                live[first + 1 : first + each] = False
        return self.lines(rows, live, tokens, torch.where(live, position, 0))

    def accept_guesses(
        self, places: GuessPlaces, fed: Feed, tokens: Tensor, failed: Tensor
    ) -> None:
        each, told = 1 + places.count, places.made[int(places.step)]
        told.copy_(torch.where(fed.rows >= 0, DROPPED, RESTS))
        for line, row in enumerate(fed.rows.tolist()):
            place = line // each
            before = told[line - 1 : line] if line % each else None
            if row < 0 or (before is not None and int(before) != int(fed.token_ids[line])):
                continue
            one = torch.tensor([row], device=told.device)
            if before is not None and not bool(self.columns.live(one)):
                continue
            at = self.columns.ints[Column.POSITION][one] + 1
            told[line] = self.columns.accept(one, tokens[[line]], at, failed[[line]])[0]
            length = int(places.lengths[place])
            if length:
                places.histories[place, length] = tokens[line]
                places.lengths[place] += 1
        places.step.add_(1)
