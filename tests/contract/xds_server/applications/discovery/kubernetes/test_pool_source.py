"""An InferencePool and its pods, against a server that changes and fails."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from support.fake_api_server import FakeApiServer
from support.inference_pools import inference_pool, objective, pod_object
from xds_server.applications.discovery.kubernetes import following, pool_source
from xds_server.applications.discovery.kubernetes.pods import OBJECTIVES, PODS, POOLS
from xds_server.applications.discovery.kubernetes.pool_source import InferencePoolSource
from xds_server.fleet.model.kubernetes import InferencePoolSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from xds_server.applications.discovery.values import Observation


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait little between attempts; what decides is not the time."""
    monkeypatch.setattr(following, "LONGEST_S", 0.02)
    monkeypatch.setattr(following, "LONGEST_WAIT_S", 0.02)


class Following:
    """A running source of the pool ``llm``, and its reports."""

    def __init__(self, pools: FakeApiServer, **fields: Any) -> None:
        self.pools, (self.pods, self.objectives) = pools, pools.beside
        spec = {"namespace": "infer", "name": "llm", "api": {"url": pools.url}, **fields}
        self.observations: list[Observation] = []
        self.troubles: list[str] = []
        source = InferencePoolSource(
            InferencePoolSpec.model_validate(spec), jitter=random.Random(7).random, settle_s=0.0
        )
        self._told = asyncio.Event()
        self.task = asyncio.create_task(source.run(self._found, self._trouble))

    def _found(self, observation: Observation) -> None:
        self.observations.append(observation)
        self._told.set()

    def _trouble(self, text: str) -> None:
        self.troubles.append(text)
        self._told.set()

    @property
    def newest(self) -> Observation:
        """What was found last."""
        return self.observations[-1]

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait for reports until ``true`` returns true."""
        async with asyncio.timeout(20):
            while not true():
                self._told.clear()
                await self._told.wait()

    async def shows(self, *names: str) -> Observation:
        """Wait until exactly these endpoints are reported."""
        wanted = sorted(names)
        await self.until(
            lambda: (
                self.observations and [each.identity for each in self.newest.endpoints] == wanted
            )
        )
        return self.newest


@pytest.fixture
async def follow() -> AsyncIterator[Callable[..., Following]]:
    """Start a source of a server that has pods ``a`` and ``b``, and the given InferencePool."""
    pods = FakeApiServer(PODS)
    pods.put(pod_object("a", "10.1.0.1"))
    pods.put(pod_object("b", "10.1.0.2"))
    pods.put(pod_object("other", "10.1.0.9", labels={"app": "web"}))
    started: list[Following] = []
    objectives = FakeApiServer(OBJECTIVES)
    async with FakeApiServer(POOLS, (pods, objectives)) as pools:

        def start(made: dict[str, Any] | None = None, **fields: Any) -> Following:
            if made is not None:
                pools.put(made)
            started.append(Following(pools, **fields))
            return started[-1]

        yield start
        for each in started:
            each.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each.task


async def test_the_pods_of_a_pool_are_found_and_followed(follow) -> None:
    """By its selector and at its port; pods come, get unready and go."""
    seen = follow(inference_pool())
    found = await seen.shows("a-8000", "b-8000")
    assert [each.http for each in found.endpoints] == ["10.1.0.1:8000", "10.1.0.2:8000"]
    assert not found.final
    seen.pods.put(pod_object("c", "10.1.0.3"))
    await seen.shows("a-8000", "b-8000", "c-8000")
    seen.pods.put(pod_object("a", "10.1.0.1", ready=False))
    await seen.until(lambda: not seen.newest.endpoints[0].serving)
    seen.pods.put(pod_object("b", "10.1.0.2", deletionTimestamp="2026-11-24T00:00:00Z"))
    await seen.until(lambda: seen.newest.endpoints[1].terminating)
    seen.pods.delete("b")
    assert not (await seen.shows("a-8000", "c-8000")).final
    assert seen.troubles == []
    assert {query["labelSelector"] for query in seen.pods.asked} == {"app=vllm"}
    assert {query["fieldSelector"] for query in seen.pools.asked} == {"metadata.name=llm"}


async def test_an_edit_of_the_ports_is_followed(follow) -> None:
    """Each port is an endpoint; what the edit takes out was meant, and is not held."""
    seen = follow(inference_pool())
    await seen.shows("a-8000", "b-8000")
    seen.pools.put(inference_pool("llm", 8000, 8001))
    found = await seen.shows("a-8000", "a-8001", "b-8000", "b-8001")
    assert found.final
    seen.pools.put(inference_pool("llm", 8001))
    assert (await seen.shows("a-8001", "b-8001")).final
    lists = [query for query in seen.pods.asked if "watch" not in query]
    assert len(lists) == 1, "the pods are the same"


async def test_an_edit_of_the_selector_is_followed(follow) -> None:
    """Another list of pods; what was found stays until it is whole, and then leaves at once."""
    seen = follow(inference_pool())
    await seen.shows("a-8000", "b-8000")
    seen.pools.put(inference_pool(labels={"app": "web"}))
    assert (await seen.shows("other-8000")).final
    assert all(each.endpoints for each in seen.observations)


async def test_a_deletion_is_followed_and_told(follow) -> None:
    """Nothing is left, without a hold; a pool of that name that comes again is taken."""
    seen = follow(inference_pool())
    await seen.shows("a-8000", "b-8000")
    seen.pools.delete("llm")
    assert (await seen.shows()).final
    await seen.until(lambda: seen.troubles)
    assert seen.troubles == [
        "the namespace 'infer' has no InferencePool 'llm': create it, or correct `inference_pool`"
    ]
    seen.pools.put(inference_pool("llm", 9000))
    await seen.shows("a-9000", "b-9000")
    assert seen.troubles[-1] == ""


@pytest.mark.parametrize("turns", range(8))
async def test_a_source_that_is_ended_while_it_lets_the_pods_go_ends(follow, turns) -> None:
    """At whatever turn of the event loop after a deletion it is cancelled."""
    seen = follow(inference_pool())
    await seen.shows("a-8000", "b-8000")
    seen.pools.delete("llm")
    await seen.shows()
    for _ in range(turns):
        await asyncio.sleep(0)
    seen.task.cancel()
    done, _ = await asyncio.wait({seen.task}, timeout=20)
    assert done


async def test_a_pool_that_comes_later_is_waited_for(follow) -> None:
    """That there is none is an answer, and told; another pool's edits change nothing."""
    seen = follow(inference_pool("another"))
    await seen.shows()
    await seen.until(lambda: seen.troubles)
    seen.pools.put(inference_pool())
    await seen.shows("a-8000", "b-8000")


async def test_another_protocol_changes_nothing_and_is_told(follow) -> None:
    """Clusters are of one protocol, which the fleet file says."""
    seen = follow(inference_pool(protocol="kubernetes.io/h2c"))
    await seen.until(lambda: seen.troubles)
    assert seen.troubles[0].endswith("write `protocol: grpc` in `inference_pool`")
    assert seen.observations == []
    seen.pools.put(inference_pool())
    await seen.shows("a-8000", "b-8000")
    assert seen.troubles[-1] == ""


async def test_grpc_where_the_pool_says_so(follow) -> None:
    """``kubernetes.io/h2c`` is gRPC."""
    seen = follow(inference_pool(protocol="kubernetes.io/h2c"), protocol="grpc")
    found = await seen.shows("a-8000", "b-8000")
    assert [(each.http, each.grpc) for each in found.endpoints] == [
        (None, "10.1.0.1:8000"),
        (None, "10.1.0.2:8000"),
    ]


@pytest.mark.parametrize("kind", ["pools", "pods"])
async def test_missing_rights_are_told_with_the_remedy(follow, kind) -> None:
    """For the one kind and for the other; rights that are granted later are used."""
    seen = follow()
    server = getattr(seen, kind)
    server.denied = {"list", "watch"}
    seen.pools.put(inference_pool())
    await seen.until(lambda: any("forbids" in each for each in seen.troubles))
    denied = next(each for each in seen.troubles if "forbids" in each)
    group, plural = server.resource.group or '""', server.resource.plural
    assert f"apiGroups [{group}], resources [{plural}] and verbs [list, watch]" in denied
    server.denied = set()
    await seen.shows("a-8000", "b-8000")
    await seen.until(lambda: seen.troubles[-1] == "")


async def test_objectives_are_followed_where_they_are_asked_for(follow) -> None:
    """The names of those of this pool with a negative priority; edits and deletions are seen."""
    seen = follow(objectives=True)
    objectives = seen.objectives
    for made in (objective("batch", -5), objective("chat", 10), objective("plain", None)):
        objectives.put(made)
    objectives.put(objective("others", -1, pool="another"))
    seen.pools.put(inference_pool())
    await seen.until(lambda: seen.observations and seen.newest.low_objectives == ("batch",))
    objectives.put(objective("chat", -1))
    await seen.until(lambda: seen.newest.low_objectives == ("batch", "chat"))
    objectives.put(objective("chat", 0))
    objectives.delete("batch")
    await seen.until(lambda: seen.newest.low_objectives == ())
    assert [each.identity for each in seen.newest.endpoints] == ["a-8000", "b-8000"]
    assert not seen.newest.final


async def test_objectives_that_cannot_be_read_cost_nothing_else(follow) -> None:
    """Without the right, or where the resource is not installed, pods are found all the same."""
    seen = follow(objectives=True)
    seen.objectives.denied = {"list", "watch"}
    seen.pools.put(inference_pool())
    await seen.shows("a-8000", "b-8000")
    await seen.until(lambda: any("inferenceobjectives" in each for each in seen.troubles))
    assert seen.newest.low_objectives == ()
    seen.objectives.denied = set()
    seen.objectives.put(objective("batch", -1))
    await seen.until(lambda: seen.newest.low_objectives == ("batch",))


async def test_more_objectives_than_are_kept_are_told(follow, monkeypatch) -> None:
    """Those known before stay; the pods are followed on."""
    monkeypatch.setattr(pool_source, "MAX_LOW_OBJECTIVES", 1)
    seen = follow(objectives=True)
    seen.objectives.put(objective("batch", -1))
    seen.pools.put(inference_pool())
    await seen.until(lambda: seen.observations and seen.newest.low_objectives == ("batch",))
    seen.objectives.put(objective("more", -1))
    await seen.until(lambda: any("more than 1 InferenceObjectives" in t for t in seen.troubles))
    assert seen.newest.low_objectives == ("batch",)


async def test_a_server_that_restarts(follow) -> None:
    """What was found stays in force meanwhile, and changes of the meantime are seen."""
    seen = follow(inference_pool())
    await seen.shows("a-8000", "b-8000")
    await seen.pools.stop()
    await seen.until(lambda: seen.troubles)
    count = len(seen.observations)
    seen.pods.put(pod_object("c", "10.1.0.3"))
    assert len(seen.observations) == count
    await seen.pools.start()
    await seen.shows("a-8000", "b-8000", "c-8000")
    await seen.until(lambda: seen.troubles[-1] == "")
