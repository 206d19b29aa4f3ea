"""The bounded buffer between rollouts and the learner: staleness is bounded by admission, not by throwing work away.

With Q groups per step and `max_staleness` s there are (s + 1) x Q slots. A slot is taken when a query is admitted and given
back when the weights trained on it have landed. The learner takes groups in the order they were admitted, so group k is
consumed by step k // Q and was admitted after step k // Q - (s + 1) had landed: none of its tokens can be more than s
versions old, however slow it was. `sweep` checks that before packing.

    admit()  waits for a free slot;           unblocked by release()
    take(n)  waits for the n oldest slots;    unblocked by put()
"""

from __future__ import annotations

import asyncio

from rlcore.types import Group


class Buffer:
    """Slots numbered by admission. Not thread-safe: it lives on one event loop."""

    def __init__(self, queries_per_step: int, max_staleness: int) -> None:
        if queries_per_step < 1 or max_staleness < 0:
            raise ValueError(f"need queries_per_step >= 1 and max_staleness >= 0, got {queries_per_step} and {max_staleness}")
        self.capacity = (max_staleness + 1) * queries_per_step
        self._admitted = self._taken = self._released = 0
        self._groups: dict[int, Group] = {}
        self._changed = asyncio.Condition()

    async def admit(self) -> int:
        """Wait for a free slot and take it. Returns its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._admitted - self._released < self.capacity)
            self._admitted += 1
            return self._admitted - 1

    async def put(self, slot: int, group: Group) -> None:
        """Fill a slot. A slot is filled once: a late duplicate is a bug of the caller."""
        async with self._changed:
            assert self._taken <= slot < self._admitted and slot not in self._groups, f"slot {slot} cannot be filled now"
            self._groups[slot] = group
            self._changed.notify_all()

    async def take(self, count: int) -> list[Group]:
        """Wait until the `count` oldest slots are filled and take their groups, in order of admission."""
        async with self._changed:
            wanted = range(self._taken, self._taken + count)
            await self._changed.wait_for(lambda: all(slot in self._groups for slot in wanted))
            self._taken += count
            return [self._groups.pop(slot) for slot in wanted]

    async def release(self, count: int) -> None:
        """Give back slots of groups whose weights have landed."""
        async with self._changed:
            self._released += count
            assert self._released <= self._taken, "more slots released than taken"
            self._changed.notify_all()

    def waiting(self) -> dict[str, int]:
        """What is in flight and what is ready, for the watchdog's report."""
        return {"in_flight": self._admitted - self._taken - len(self._groups), "ready": len(self._groups)}


def sweep(groups: list[Group], version: int, max_staleness: int) -> None:
    """The guarantee before packing: no token may be more than `max_staleness` versions old."""
    for group in groups:
        oldest = group.oldest_version
        assert oldest is None or version - oldest <= max_staleness, (
            f"group {group.id} holds tokens of version {oldest}, {version - oldest} behind version {version}, limit "
            f"{max_staleness}"
        )
