import asyncio
import pickle
from types import SimpleNamespace

import pytest

from rlcore.cluster import ServiceProxy, check_placement, free_port, needs
from rlcore.errors import ConfigError, InfrastructureFailure
from tests.rlcore.test_config import composed


def test_need_is_counted_before_anything_is_created():
    c = composed("cluster.engines=2", "cluster.engine_cpus=3")
    # 2 engines x 3, one learner rank 0.5, one reward worker 0.1, the retriever 0.2
    assert sum(n.count * n.cpus for n in needs(c)) == pytest.approx(6.8)
    check_placement(c, 6.8, 0)
    with pytest.raises(ConfigError, match=r"CPUs: need 6.8, have 4\.(.|\n)*2 x \(3 CPU, 0 GPU\)"):
        check_placement(c, 4, 0)


def test_gpus_are_counted_apart():
    c = composed("cluster=a100x8")
    with pytest.raises(ConfigError, match="GPUs: need 8, have 1"):
        check_placement(c, 1000, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_laptop_preset_fits_two_cores(ranks):
    check_placement(composed(f"cluster.learner_ranks={ranks}"), 2, 0)


def test_every_replica_of_a_service_is_counted():
    c = composed("+env.services.retriever.replicas=3", "env.services.retriever.cpus=0.5")
    assert [(n.count, n.cpus) for n in needs(c) if n.what == "service retriever"] == [(3, 0.5)]
    with pytest.raises(ConfigError, match="env.services.retriever.replicas=0 must be at least 1"):
        composed("+env.services.retriever.replicas=0")


class Replica:
    """Looks like the handle of a Service actor. Calls wait for `gate`, then raise `error` if there is one."""

    def __init__(self, name: str, error: Exception | None = None):
        self.name, self.error, self.calls = name, error, 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.call, self.started = SimpleNamespace(remote=self._call), SimpleNamespace(remote=self._started)

    async def _call(self, method, args, kwargs):
        self.calls += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.name, method, args, kwargs

    async def _started(self):
        if self.error is not None:
            raise self.error


def died() -> Exception:
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


async def held(proxy: ServiceProxy, count: int) -> list[asyncio.Task]:
    """`count` calls, one after another, that do not end yet."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(proxy.search()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return tasks


def test_a_call_goes_to_the_replica_with_the_fewest_in_flight():
    async def run():
        first, second = Replica("first"), Replica("second")
        proxy = ServiceProxy("retriever", [first, second], 5)
        assert await proxy.search(["red"], k=2) == ("first", "search", (["red"],), {"k": 2})
        first.gate.clear()
        second.gate.clear()
        tasks = await held(proxy, 5)
        assert (first.calls, second.calls) == (1 + 3, 2)
        second.gate.set()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert await proxy.search() == ("second", "search", (), {})
        first.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_a_dead_replica_is_taken_out_of_service_and_its_calls_are_sent_to_another():
    async def run():
        first, second = Replica("first", died()), Replica("second")
        proxy = ServiceProxy("retriever", [first, second], 5)
        first.gate.clear()
        tasks = await held(proxy, 2)  # one on each
        first.gate.set()
        assert [reply[0] for reply in await asyncio.gather(*tasks)] == ["second", "second"]
        assert (await proxy.search())[0] == "second"
        assert (first.calls, second.calls) == (1, 3)
        second.error = died()
        for reason in ("no replica answers: ActorDiedError", "no replica lives"):
            with pytest.raises(InfrastructureFailure, match=f"service retriever.search: {reason}"):
                await proxy.search()

    asyncio.run(run())


def test_an_unavailable_replica_stays_in_service():
    from ray.exceptions import ActorUnavailableError

    async def run():
        replica = Replica("only", ActorUnavailableError("lost for a moment", None))
        proxy = ServiceProxy("retriever", [replica], 5)
        with pytest.raises(InfrastructureFailure, match="no replica answers: ActorUnavailableError"):
            await proxy.search()
        replica.error = None
        assert (await proxy.search())[0] == "only"

    asyncio.run(run())


def test_a_hung_replica_is_an_infrastructure_failure_and_gets_no_more_calls():
    async def run():
        first, second = Replica("first"), Replica("second")
        proxy = ServiceProxy("retriever", [first, second], 0.02)
        first.gate.clear()
        with pytest.raises(InfrastructureFailure, match="service retriever.search: no answer within 0.02 s"):
            await proxy.search()
        proxy._timeout_s = 20  # the other one may take as long as this machine needs
        assert [(await proxy.search())[0] for _ in range(3)] == ["second"] * 3
        first.gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await proxy.search())[0] == "first"  # its answer came late, but came

    asyncio.run(run())


def test_a_proxy_can_be_sent_to_another_process():
    """Handles go along, its own counts do not: the worker that gets it has no call in flight."""

    async def run():
        proxy = pickle.loads(pickle.dumps(ServiceProxy("retriever", ["a handle", "another"], 5)))
        assert (proxy._name, proxy._in_flight, proxy._timeout_s) == ("retriever", {"a handle": 0, "another": 0}, 5)

    asyncio.run(run())


def test_an_error_of_the_method_or_of_a_constructor_arrives_as_it_was():
    from ray.exceptions import RayTaskError

    async def run():
        broken = RayTaskError("search", "traceback", ValueError("k must be at least 1, got 0"))
        proxy = ServiceProxy("retriever", [Replica("fine"), Replica("broken", broken)], 5)
        with pytest.raises(ValueError, match="k must be at least 1, got 0") as error:
            await proxy.ready()
        assert type(error.value) is ValueError
        proxy = ServiceProxy("retriever", [Replica("broken", broken), Replica("fine")], 5)
        with pytest.raises(ValueError, match="k must be at least 1, got 0") as error:
            await proxy.search()
        assert type(error.value) is ValueError

    asyncio.run(run())


def test_a_free_port_can_be_bound_and_is_none_that_a_connection_going_out_may_take():
    import socket

    port = free_port()
    assert 20_000 <= port < 32_000
    with socket.socket() as s:
        s.bind(("", port))
