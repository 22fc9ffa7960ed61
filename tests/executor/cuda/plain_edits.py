"""The edits of rows' logits in plain torch, from the lists that lie on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.executor.cuda.device_edits import ANY_TOKEN, DeviceEdits, EditColumn


@dataclass
class PlainEdits:
    """Edits of single lines, from the lists that rows have on the device."""

    edits: DeviceEdits

    def sizes(self, row: int) -> list[int]:
        column = self.edits.ints[:, row].tolist()
        num_phrases, reach = column[EditColumn.NUM_PHRASES], column[EditColumn.NUM_TAIL]
        spelled = [num_phrases * (reach + 1), reach]
        return [max(column[1], 0), column[2], *spelled, *column[3:5], column[4], *[column[6]] * 2]

    def lists(self, row: int) -> list[Tensor]:
        """As they lie in the arena, so that what is written to them stays."""
        first, sizes = int(self.edits.ints[EditColumn.SPAN, row]), self.sizes(row)
        *fixed, seen, counts = self.edits.words[first : first + sum(sizes)].split(sizes)
        num_seen = int(self.edits.ints[EditColumn.NUM_SEEN, row])
        return [*fixed, seen[:num_seen], counts[:num_seen]]

    def edit(self, logits: Tensor, row: int, at: int) -> Tensor:
        allowed, banned, phrases, tail, stops, bias_ids, biases, seen, counts = self.lists(row)
        made = logits.clone()
        if (line := int(self.edits.ints[EditColumn.LINE, row])) >= 0:
            token = torch.arange(len(logits))
            bits = self.edits.masks[line, token // 32] >> (token % 32) & 1
            made = torch.where(bits > 0, made, -torch.inf)
        masked = made.clone()
        if self.edits.ints[EditColumn.NUM_ALLOWED, row] >= 0:
            made.fill_(-torch.inf)
            made[allowed] = masked[allowed]
        made[banned] = -torch.inf
        last, *before = phrases.view(len(tail) + 1, -1)
        for word, *others in zip(last.tolist(), *(part.tolist() for part in before), strict=True):
            if all(one in (ANY_TOKEN, t) for one, t in zip(others, tail.tolist(), strict=True)):
                made[word] = -torch.inf
        if at < self.edits.ints[EditColumn.FREE_FROM, row]:
            made[stops] = -torch.inf
        made[bias_ids] += biases.view(torch.float32)
        repetition, frequency, presence = self.edits.penalties[:, row]
        x = made[seen]
        after = torch.where(x > 0, x / repetition, x * repetition)
        made[seen] = after - frequency * counts - presence * (counts > 0)
        return made

    def remember(self, row: int, token: int) -> None:
        room = int(self.edits.ints[EditColumn.ROOM_SEEN, row])
        lists = self.lists(row)
        tail, seen = lists[3], lists[-2]
        if len(tail):
            tail.copy_(torch.tensor([token, *tail[:-1].tolist()]))
        if not room:
            return
        found = (seen == token).nonzero()[:, 0].tolist()
        at = found[0] if found else len(seen)
        assert at < room, "a row wrote more than it may"
        column = self.edits.ints[:, row]
        first = int(column[EditColumn.SPAN]) + sum(self.sizes(row)[:-2])
        self.edits.words[first + at] = token
        self.edits.words[first + room + at] = self.edits.words[first + room + at] * bool(found) + 1
        column[EditColumn.NUM_SEEN] = len(seen) + (not found)
