import asyncio
import random

import pytest

from rlcore.buffer import Buffer, sweep
from rlcore.types import Group, Query, Sequence, Trajectory
from tests.rlcore.judge_stub import virtual


def group(name: str, version: int = 0) -> Group:
    s = Sequence()
    s.append_sampled([1], [-1.0], [version], "stop")
    return Group(name, Query(name), [Trajectory(Query(name), name, 0, [s])])


def test_a_synchronous_step_takes_its_groups_in_order_of_admission_not_of_completion():
    async def main():
        buffer = Buffer(queries_per_step=2, max_staleness=0)
        first, second = await buffer.admit(), await buffer.admit()
        await buffer.put(second, group("fast"))
        take = asyncio.create_task(buffer.take(2))
        await asyncio.sleep(0.01)
        assert not take.done()  # the slow one is waited for, not starved
        await buffer.put(first, group("slow"))
        assert [g.id for g in await asyncio.wait_for(take, 1)] == ["slow", "fast"]

    asyncio.run(main())


@pytest.mark.parametrize(("max_staleness", "in_flight"), [(0, None), (1, None), (2, None), (3, 5), (5, 4)])
def test_staleness_never_exceeds_its_bound_and_every_group_is_taken(max_staleness, in_flight):
    """A simulated run: versions advance with releases, each group samples its first token at the version of its admission, and
    some take much longer than others."""
    draws = random.Random(0)

    async def main():
        buffer, version, seen, taken = Buffer(2, max_staleness, in_flight), 0, [], []

        async def fill(slot: int, admitted_at: int):
            await asyncio.sleep(draws.choice([0.1, 1.0, 1.0, 1.0, 20.0]))
            await buffer.put(slot, group(str(slot), admitted_at))

        async def produce():
            async with asyncio.TaskGroup() as tasks:
                for _ in range(80):
                    tasks.create_task(fill(await buffer.admit(), version))

        producer = asyncio.create_task(produce())
        for _ in range(40):
            groups = await asyncio.wait_for(buffer.take(2), 60)
            sweep(groups, version, max_staleness)
            seen.append(version - min(g.oldest_version for g in groups))
            taken += [int(g.id) for g in groups]
            await asyncio.sleep(0.4)
            version += 1
            await buffer.release(2)
        await producer
        return max(seen), taken

    oldest, taken = virtual(main())
    assert oldest == max_staleness and sorted(taken) == list(range(80))


def test_a_slow_group_is_passed_by_as_long_as_it_can_still_be_taken_in_time():
    async def main():
        buffer, taken = Buffer(queries_per_step=1, max_staleness=2, groups_in_flight=2), []
        slow = await buffer.admit()
        for _ in range(2):
            slot = await buffer.admit()
            await buffer.put(slot, group(str(slot)))
            taken += [g.id for g in await asyncio.wait_for(buffer.take(1), 1)]
            await buffer.release(1)
        slot = await buffer.admit()  # at version 2, where the slow one has to be taken
        await buffer.put(slot, group(str(slot)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(buffer.take(1), 1)
        await buffer.put(slow, group("slow"))
        return taken + [g.id for g in await asyncio.wait_for(buffer.take(1), 1)]

    assert virtual(main()) == ["1", "2", "slow"]


@pytest.mark.parametrize("in_flight", [1, 5])
def test_too_few_or_too_many_groups_in_flight(in_flight):
    with pytest.raises(ValueError, match=f"groups_in_flight={in_flight} must lie between 2 and 4"):
        Buffer(2, 1, in_flight)


def test_sweep_refuses_a_stale_token():
    with pytest.raises(AssertionError, match="2 behind version 2"):
        sweep([group("g", version=0)], version=2, max_staleness=1)


def test_a_slot_is_filled_once():
    async def main():
        buffer = Buffer(1, 0)
        slot = await buffer.admit()
        await buffer.put(slot, group("a"))
        with pytest.raises(AssertionError, match="slot 0"):
            await buffer.put(slot, group("b"))

    asyncio.run(main())
