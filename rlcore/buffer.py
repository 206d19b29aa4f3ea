"""The bounded buffer between rollouts and the learner: staleness is bounded by admission, not by throwing work away.

With Q groups per step and `max_staleness` s there are (s + 1) x Q slots, or fewer. A slot is taken when a query is admitted and
given back when the weights trained on it have landed. A group admitted at version v has to be consumed at v + s at the latest:
none of its tokens can be more than s versions old. The learner takes whatever is scored, the oldest first, as long as every
other group can still be consumed in time. Where one cannot, it waits: so a slow group delays a step only once s steps went
ahead of it, and it is never starved. With all the slots each cohort of Q has just its own step, after those before it; with
fewer, slow groups have time that fast ones do not need. `sweep` checks the bound before packing.

    admit()  waits for a free slot;                                  unblocked by release()
    take(n)  waits for n filled slots that may be taken now;         unblocked by put()
"""

from __future__ import annotations

import asyncio

from rlcore.types import Group


class Buffer:
    """Slots numbered by admission, `groups_in_flight` at a time (None: as many as can be consumed in time).

    Not thread-safe: it lives on one event loop.
    """

    def __init__(self, queries_per_step: int, max_staleness: int, groups_in_flight: int | None = None) -> None:
        if queries_per_step < 1 or max_staleness < 0:
            raise ValueError(f"need queries_per_step >= 1 and max_staleness >= 0, got {queries_per_step} and {max_staleness}")
        most = (max_staleness + 1) * queries_per_step
        self.capacity = most if groups_in_flight is None else groups_in_flight
        if not queries_per_step <= self.capacity <= most:
            raise ValueError(f"groups_in_flight={groups_in_flight} must lie between {queries_per_step} and {most}")
        self._per_step, self._max_staleness = queries_per_step, max_staleness
        self._admitted = self._taken = self._released = 0
        self._born: dict[int, int] = {}  # the version at admission of every slot that is not taken, oldest first
        self._groups: dict[int, Group] = {}
        self._changed = asyncio.Condition()

    async def admit(self) -> int:
        """Wait for a free slot and take it. Returns its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._admitted - self._released < self.capacity)
            slot, self._admitted = self._admitted, self._admitted + 1
            self._born[slot] = self._released // self._per_step
            return slot

    async def put(self, slot: int, group: Group) -> None:
        """Fill a slot. A slot is filled once: a late duplicate is a bug of the caller."""
        async with self._changed:
            assert slot in self._born and slot not in self._groups, f"slot {slot} cannot be filled now"
            self._groups[slot] = group
            self._changed.notify_all()

    async def take(self, count: int) -> list[Group]:
        """Wait until `count` slots are filled without which every other can be consumed in time; their groups, oldest first."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._choice(count) is not None)
            chosen = self._choice(count)
            assert chosen is not None
            self._taken += count
            for slot in chosen:
                del self._born[slot]
            return [self._groups.pop(slot) for slot in chosen]

    def _choice(self, count: int) -> list[int] | None:
        """The `count` oldest filled slots; None when there are fewer, or one of the others would come too late.

        Taking the oldest leaves the others the most time, and those that are admitted later come after them.
        """
        chosen = sorted(self._groups)[:count]
        left = [born for slot, born in self._born.items() if slot not in chosen]
        version = (self._taken + count) // self._per_step  # at the next step
        in_time = all(version + place // self._per_step <= born + self._max_staleness for place, born in enumerate(left))
        return chosen if len(chosen) == count and in_time else None

    async def release(self, count: int) -> None:
        """Give back slots of groups whose weights have landed."""
        async with self._changed:
            self._released += count
            assert self._released <= self._taken, "more slots released than taken"
            self._changed.notify_all()

    def waiting(self) -> dict[str, int]:
        """What is in flight and what is ready, for the watchdog's report."""
        return {"in_flight": len(self._born) - len(self._groups), "ready": len(self._groups)}


def sweep(groups: list[Group], version: int, max_staleness: int) -> None:
    """The guarantee before packing: no token may be more than `max_staleness` versions old."""
    for group in groups:
        oldest = group.oldest_version
        assert oldest is None or version - oldest <= max_staleness, (
            f"group {group.id} holds tokens of version {oldest}, {version - oldest} behind version {version}, limit "
            f"{max_staleness}"
        )
