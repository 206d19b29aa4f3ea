import asyncio

import pytest

from rlcore.buffer import Buffer, sweep
from rlcore.types import Group, Query, Sequence, Trajectory


def group(name: str, version: int = 0) -> Group:
    s = Sequence()
    s.append_sampled([1], [-1.0], [version], "stop")
    return Group(name, Query(name), [Trajectory(Query(name), name, 0, [s])])


def test_groups_are_taken_in_order_of_admission_not_of_completion():
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


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_staleness_never_exceeds_its_bound_however_slow_a_group_is(max_staleness):
    """A simulated run: versions advance with releases, each group samples its first token at the version of its admission."""

    async def main():
        buffer, version, seen = Buffer(2, max_staleness), 0, []

        async def fill(slot: int, admitted_at: int):
            await asyncio.sleep(0.02 if slot % 5 == 0 else 0.001)
            await buffer.put(slot, group(str(slot), admitted_at))

        async def produce():
            while True:
                slot = await buffer.admit()
                asyncio.create_task(fill(slot, version))

        producer = asyncio.create_task(produce())
        for _ in range(12):
            groups = await asyncio.wait_for(buffer.take(2), 5)
            sweep(groups, version, max_staleness)
            seen.append(version - min(g.oldest_version for g in groups))
            await asyncio.sleep(0.004)
            version += 1
            await buffer.release(2)
        producer.cancel()
        return seen

    assert max(asyncio.run(main())) == max_staleness


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
