"""Memory that adapters take beside the slots that are allocated at the start: for own heads,
embeddings and other numbers, and for A and B of experts, heads and embeddings. No torch.

It is allocated when the first adapter with such numbers is loaded, and stays: numbers of the same
shapes and dtypes use it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.adapters.sites import EMBEDDING, is_of_expert, is_of_pairs, is_seldom

if TYPE_CHECKING:
    from quire.adapters.read import AdapterWeights

# Left free for passes, which are captured again when other kernels run.
MARGIN = 256 << 20


@dataclass(frozen=True, slots=True)
class Need:
    """Memory for numbers of one form; `for_all`: taken once, for the adapters of all slots."""

    form: Hashable
    num_bytes: int
    for_all: bool = False


def needs_of(weights: AdapterWeights, num_slots: int, rank: int) -> list[Need]:
    """What an adapter takes, with so many slots whose A and B have room for this rank."""
    found = [
        Need((site, tuple(one.weight.shape)), one.num_bytes)
        for site, one in weights.own.items()
        if one.weight is not None
    ]
    for site, some in weights.added.items():
        if not is_seldom(site) and site != EMBEDDING:
            continue
        sides = sum(one.a.shape[1] + len(one.b) for one in some)
        num_bytes = sides * rank * some[0].a.element_size()
        if is_of_pairs(site):
            found.append(Need((site, sum(len(one.a) for one in some)), num_bytes))
        elif is_of_expert(site):
            found.append(Need((site, "A and B"), num_bytes))
        else:
            found.append(Need((site, "A and B"), num_bytes * num_slots, for_all=True))
    return found


class TakenRoom:
    def __init__(self, num_slots: int, free: Callable[[], int]) -> None:
        """`free` returns the free bytes of the device."""
        self._free = free
        self._taken: Counter[Hashable] = Counter()  # the number of allocations by form
        self._of_slot: list[set[Hashable]] = [set() for _ in range(num_slots)]
        self._promised = 0

    def promise(self, needs: Sequence[Need], slot: int | None) -> str:
        """Why there is no room for an adapter in this slot (None: a slot that will be freed); "" if
        there is. It is then reserved until the next load."""
        missing = sum(one.num_bytes for one in needs if self._is_missing(one, slot))
        free = self._free() - self._promised - MARGIN
        if missing <= max(0, free):
            self._promised += missing
            return ""
        return (
            f"takes {missing / 1e6:,.0f} MB of its own on the device (head, embedding, experts), "
            f"and {max(0, free) / 1e6:,.0f} MB are left. Lower gpu_memory_utilization, max_loras "
            "or max_lora_rank, or merge it into its base with peft's merge_and_unload()"
        )

    def load(self, slot: int, needs: Sequence[Need]) -> None:
        """Note the slot's contents, and drop all reservations."""
        self._promised = 0
        self._of_slot[slot] = {one.form for one in needs}
        for one in needs:
            held = sum(one.form in forms for forms in self._of_slot)
            self._taken[one.form] = max(self._taken[one.form], held)

    def _is_missing(self, need: Need, slot: int | None) -> bool:
        taken = self._taken[need.form]
        if need.for_all or not taken:
            return not taken
        others = sum(need.form in forms for i, forms in enumerate(self._of_slot) if i != slot)
        return others - (slot is None) >= taken
