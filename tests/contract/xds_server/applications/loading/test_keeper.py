"""Operations on replicas that answer well, fail, differ and hang, and over a restart."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest

from support.fleets import fleet, pool
from support.model_servers import ModelServer
from xds_server.applications.loading.acting import ModelActions
from xds_server.applications.loading.keeper import (
    KEY,
    MAX_KEPT,
    MAX_OPEN,
    MAX_WARMUPS,
    WARMUP_KEY,
    LoadKeeper,
    TooManyOperations,
    WantedOperation,
)
from xds_server.applications.loading.leaving import ModelDrained
from xds_server.applications.loading.operation import MAX_STORED_WARMUP
from xds_server.applications.loading.plan import Answered
from xds_server.applications.loading.replicas import TritonCalls
from xds_server.fleet.change import BadChange, UnknownName
from xds_server.fleet.store import RevisionStore, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from xds_server.applications.loading.operation import Operation

WAIT_S = 20.0
LOAD = WantedOperation("load", "llm", "m")
UNLOAD = LOAD._replace(kind="unload")


class Leaving:
    """What takes models out of use: as told, at once.

    Args:
        servers: The replicas.
    """

    def __init__(self, servers: list[ModelServer]) -> None:
        self._servers = servers
        self.outcome = ModelDrained()
        self.hangs = False
        self.held: dict[Any, set[tuple[str, str]]] = {}
        self.seen: list[tuple[str, bool]] = []
        """Replicas whose model was taken out of use, and whether it was loaded there then."""
        self.reached = asyncio.Event()

    async def hold(self, holder: Any, endpoints: tuple[str, ...], model: str) -> ModelDrained:
        """Hold a model on a replica."""
        self.recall(holder, {(each, model) for each in endpoints})
        loaded = {each.name: bool(each.ready.get(model)) for each in self._servers}
        self.seen += [(each, loaded[each]) for each in endpoints]
        self.reached.set()
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return self.outcome

    async def release(self, holder: Any) -> None:
        """Let go."""
        self.held.pop(holder, None)

    def recall(self, holder: Any, places: set[tuple[str, str]]) -> None:
        """Hold before anything is published."""
        self.held.setdefault(holder, set()).update(places)


class Bench:
    """Three replicas, a store, and a keeper that may be started again."""

    def __init__(self) -> None:
        self.servers = [ModelServer(f"r{each}") for each in (1, 2, 3)]
        self.store = RevisionStore(None)
        self.needs: dict[str, Any] = {}
        self.version: str | None = None
        """That of the variant."""
        self.pauses: list[float] = []
        self.leaving = Leaving(self.servers)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for each in self.servers:
            await self._stack.enter_async_context(each)
        self._calls = await self._stack.enter_async_context(TritonCalls())
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.keeper.stop()
        await self._stack.aclose()
        self.store.close()

    async def start(self) -> None:
        """Start a keeper with what is stored."""
        endpoints = [each.endpoint for each in self.servers]
        variant = {"name": "v", "model_version": self.version}
        spec = pool(default=True, match={"models": ["m"]}, variants=[variant], endpoints=endpoints)
        if self.needs:
            spec["model_needs"] = [self.needs]
        control: Any = SimpleNamespace(fleet=fleet(spec), revision=1)

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        self.keeper = LoadKeeper(
            ModelActions(control, self._calls, pause, self.leaving),  # type: ignore[arg-type]  # enough
            self.store,
            lambda: 1000,
        )
        await self.keeper.start()

    async def run(self, wanted: WantedOperation = LOAD) -> Operation:
        """Run an operation to its end."""
        made = await self.keeper.begin(wanted)
        assert await self.keeper.ended(made.number, WAIT_S)
        return made

    @property
    def having(self) -> list[str]:
        """The replicas that have the model."""
        return [each.name for each in self.servers if each.ready.get("m")]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Return a bench that runs."""
    async with Bench() as made:
        yield made


async def until(what: Any) -> None:
    """Wait for something that another task does."""
    async with asyncio.timeout(WAIT_S):
        while not what():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0.001)


async def test_a_model_is_loaded_everywhere(bench: Bench) -> None:
    """And can be unloaded again, by force, as no replica is left with it."""
    made = await bench.run()
    assert (made.phase, bench.having) == ("done", ["r1", "r2", "r3"])
    made = await bench.run(UNLOAD._replace(force=True))
    assert (made.phase, bench.having) == ("done", [])


async def test_at_most_so_many_replicas_load_at_a_time(bench: Bench) -> None:
    """A repository that all read from is not read by all at once."""
    gate = asyncio.Event()
    for each in bench.servers:
        each.hold = gate
    made = await bench.keeper.begin(LOAD._replace(parallel=2))
    await until(lambda: sum(each.at_once for each in bench.servers) == 2)
    assert [each.calls for each in bench.servers] == [["load"], ["load"], []]
    gate.set()
    assert await bench.keeper.ended(made.number, WAIT_S)
    assert bench.having == ["r1", "r2", "r3"]


async def test_one_that_fails_undoes_all(bench: Bench) -> None:
    """The reason is that of the replica."""
    bench.servers[1].load_error = "no such file"
    made = await bench.run()
    assert (made.phase, bench.having) == ("undone", [])
    assert made.why == "r2: not loaded: 400: no such file"


async def test_what_was_there_stays(bench: Bench) -> None:
    """An operation that fails takes only what it brought."""
    bench.servers[0].ready["m"] = ["1"]
    bench.servers[2].load_error = "broken"
    made = await bench.run()
    assert (made.phase, bench.having) == ("undone", ["r1"])
    assert bench.servers[0].calls == []


async def test_a_version_that_was_replaced_is_named_at_the_end(bench: Bench) -> None:
    """Triton has given the old one up, and it does not come back."""
    for each in bench.servers[:2]:
        each.ready["m"] = ["1"]
        each.repository["m"] = ["2"]
    made = await bench.run(LOAD._replace(version="3"))
    assert made.phase == "undone"
    assert made.now == "r1, r2: version 2; r3: no version"


async def test_another_version_than_the_variants_is_refused(bench: Bench) -> None:
    """Before anything is changed, with the replicas and the way to do it."""
    bench.version = "1"
    await bench.start()
    with pytest.raises(BadChange, match="r1, r2, r3: variant v of pool llm has model_version 1"):
        await bench.run(LOAD._replace(version="2"))
    assert [each.calls for each in bench.servers] == [[], [], []]
    assert (await bench.run(LOAD._replace(version="1"))).phase == "done"


async def test_a_load_that_brings_another_version_than_the_variants_is_undone(
    bench: Bench,
) -> None:
    """Which version that is, only the load shows; over HTTP alone a higher one does no harm."""
    bench.version = "1"
    await bench.start()
    bench.servers[1].repository["m"] = ["2"]
    made = await bench.run()
    assert (made.phase, bench.having) == ("undone", [])
    assert "r2 answers by version 2, but variant v of pool llm has model_version 1" in made.why
    for each in bench.servers:
        each.repository["m"] = ["1", "2"]
    assert (await bench.run()).phase == "done"


async def test_replicas_that_differ_are_undone(bench: Bench) -> None:
    """With the place of the difference."""
    bench.servers[2].config["max_batch_size"] = 4
    made = await bench.run()
    assert (made.phase, bench.having) == ("undone", [])
    assert "r3 differs from r1 in max_batch_size (4, 8)" in made.why


async def test_a_version_that_a_load_does_not_bring_undoes_it(bench: Bench) -> None:
    """The repository's version policy chooses which versions are served."""
    made = await bench.run(LOAD._replace(version="2"))
    assert (made.phase, bench.having) == ("undone", [])
    assert "r1 has no version 2 but 1" in made.why


async def test_memory_that_is_short_begins_nothing(bench: Bench) -> None:
    """No replica is asked to load."""
    bench.needs = {"model": "m", "memory_mib": 500}
    bench.servers[1].free_mib = 499
    await bench.start()
    made = await bench.run()
    assert made.phase == "undone"
    assert made.why == "r2: 499 MiB of host memory are free, 500 MiB are needed"
    assert [each.calls for each in bench.servers] == [[], [], []]


async def test_a_replica_that_is_not_in_explicit_mode_is_refused(bench: Bench) -> None:
    """With the flag to set, and before anything is changed."""
    bench.servers[2].explicit = False
    made = await bench.run()
    assert made.phase == "undone"
    assert "r3: it takes no loads" in made.why
    assert "--model-control-mode=explicit" in made.why
    assert bench.servers[0].calls == []


async def test_warm_up_requests_come_after_the_comparison(bench: Bench) -> None:
    """To each replica that has loaded; one that fails undoes all."""
    wanted = LOAD._replace(warmup=(b'{"id": "a"}', b'{"id": "b"}'))
    assert (await bench.run(wanted)).phase == "done"
    assert bench.servers[0].calls == ["load", 'infer {"id": "a"}', 'infer {"id": "b"}']
    await bench.run(UNLOAD._replace(force=True))
    bench.servers[1].infer_status = 500
    assert (await bench.run(wanted)).phase == "undone"
    assert bench.having == []


async def test_the_last_replica_with_a_model_keeps_it(bench: Bench) -> None:
    """Unless it is forced; a part of the replicas may lose it."""
    await bench.run()
    made = await bench.run(UNLOAD)
    assert (made.phase, len(bench.having)) == ("undone", 3)
    assert "would be the last of the pool to have it" in made.why
    made = await bench.run(UNLOAD._replace(endpoints=("r1", "r2")))
    assert (made.phase, bench.having) == ("done", ["r3"])


async def test_an_abort_undoes_what_was_done(bench: Bench) -> None:
    """The load that runs is waited for, since it can not be cut off."""
    gate = bench.servers[1].hold = asyncio.Event()
    made = await bench.keeper.begin(LOAD._replace(parallel=1))
    await until(lambda: bench.servers[1].at_once)
    await bench.keeper.abort(made.number, "ann")
    await until(lambda: made.phase == "undoing")
    gate.set()
    assert await bench.keeper.ended(made.number, WAIT_S)
    assert (made.phase, made.why, bench.having) == ("undone", "aborted by ann", [])
    assert bench.servers[2].calls == []


async def test_operations_on_one_model_wait_for_each_other(bench: Bench) -> None:
    """And one that waits can be aborted at once, without a call."""
    gate = bench.servers[0].hold = asyncio.Event()
    first = await bench.keeper.begin(LOAD)
    second = await bench.keeper.begin(UNLOAD._replace(force=True))
    third = await bench.keeper.begin(LOAD)
    await until(lambda: bench.servers[0].at_once)
    assert (second.phase, third.phase) == ("waiting", "waiting")
    await bench.keeper.abort(third.number, "ann")
    assert await bench.keeper.ended(third.number, WAIT_S)
    assert (first.phase, third.phase) == ("changing", "undone")
    gate.set()
    assert await bench.keeper.ended(second.number, WAIT_S)
    assert (first.phase, second.phase, bench.having) == ("done", "done", [])


async def test_a_restart_goes_on_with_what_was_open(bench: Bench) -> None:
    """Also with a call whose end is unknown, and an operation that waited."""
    gate = bench.servers[1].hold = asyncio.Event()
    made = await bench.keeper.begin(LOAD._replace(parallel=1))
    await bench.keeper.begin(LOAD)
    await until(lambda: bench.servers[1].at_once)
    assert bench.having == ["r1"]
    await bench.keeper.stop()
    gate.set()
    await bench.start()
    for number in (1, 2):
        assert await bench.keeper.ended(number, WAIT_S)
    newest, first = bench.keeper.operations("", 0, 10)
    assert (newest.phase, first.phase, bench.having) == ("done", "done", ["r1", "r2", "r3"])
    assert (first.number, first.resumed) == (made.number, 1)
    assert [bench.servers[each].calls for each in (0, 2)] == [["load"], ["load"]]


async def test_a_restart_sends_warm_up_requests_that_are_stored(bench: Bench) -> None:
    """They are forgotten when the operation has ended."""
    gate = bench.servers[0].hold = asyncio.Event()
    await bench.keeper.begin(LOAD._replace(endpoints=("r1",), warmup=(b'{"id": "a"}',)))
    await until(lambda: bench.servers[0].at_once)
    await bench.keeper.stop()
    assert bench.store.value(WARMUP_KEY.format(0))
    gate.set()
    await bench.start()
    assert await bench.keeper.ended(1, WAIT_S)
    (made,) = bench.keeper.operations("", 0, 10)
    assert (made.phase, bench.servers[0].calls[-1]) == ("done", 'infer {"id": "a"}')
    assert bench.store.value(WARMUP_KEY.format(0)) == ""


@pytest.mark.parametrize("lost", [False, True])
async def test_a_restart_undoes_what_lacks_its_warm_up_requests(bench: Bench, lost: bool) -> None:
    """They were too large to be stored, or the store has lost them."""
    gate = bench.servers[0].hold = asyncio.Event()
    size = 8 if lost else MAX_STORED_WARMUP // 2 + 1
    await bench.keeper.begin(LOAD._replace(endpoints=("r1",), warmup=(b"x" * size,) * 2))
    await until(lambda: bench.servers[0].at_once)
    await bench.keeper.stop()
    if lost:
        bench.store.put_value(WARMUP_KEY.format(0), "[2]")
    gate.set()
    await bench.start()
    assert await bench.keeper.ended(1, WAIT_S)
    (made,) = bench.keeper.operations("", 0, 10)
    assert (made.phase, bench.having) == ("undone", [])
    assert made.why == "the control server was restarted, and not all that it needs was stored"


async def test_what_cannot_be_undone_is_told(bench: Bench) -> None:
    """After pauses that double."""
    bench.servers[0].unload_errors = 9
    bench.servers[1].load_error = "broken"
    made = await bench.run()
    assert (made.phase, bench.having) == ("failed", ["r1"])
    assert bench.pauses == [1, 2, 4, 8]
    assert [each.place for each in made.targets] == ["stuck", "undone", "undone"]
    now = bench.keeper.now()
    assert (now.left, now.ended["load", "failed"], now.ended["load", "done"]) == ({"llm": 1}, 1, 0)
    bench.servers[0].unload_errors = 0
    await bench.run(UNLOAD._replace(endpoints=("r1",), force=True))
    now = bench.keeper.now()
    assert (now.left, now.ended["unload", "done"]) == ({}, 1)


async def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    """It tells what the check finds."""
    bench.servers[0].ready["m"] = ["1"]
    made = await bench.run(LOAD._replace(dry_run=True))
    assert (made.phase, bench.having) == ("done", ["r1"])
    assert sum(bench.keeper.now().ended.values()) == 0
    assert "r1: it is READY there already (1)" in [each.text for each in made.steps]


async def test_parity_names_replicas_without_the_model(bench: Bench) -> None:
    """They are no difference, and neither silence."""
    await bench.run(LOAD._replace(endpoints=("r1", "r2")))
    bench.servers[1].config["backend"] = "onnxruntime"
    found, told = await bench.keeper.actions.parity("llm", "m")
    assert [each.endpoint for each in found] == ["r1", "r2", "r3"]
    assert found[2].fault == "404: Request for unknown model"
    assert len(told) == 1
    assert 'backend ("onnxruntime", "python")' in told[0]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"pool": "x"}, UnknownName),
        ({"endpoints": ("r9",)}, UnknownName),
        ({"model": ""}, BadChange),
        ({"version": "new"}, BadChange),
        ({"parallel": 0}, BadChange),
        ({"warmup": (b"",) * (MAX_WARMUPS + 1)}, BadChange),
    ],
)
async def test_what_is_wrong_is_refused(
    bench: Bench, change: dict[str, Any], error: type[Exception]
) -> None:
    """Before an operation is made of it."""
    with pytest.raises(error):
        await bench.keeper.begin(LOAD._replace(**change))
    assert bench.keeper.operations("", 0, 9) == []


async def test_open_operations_are_bounded(bench: Bench) -> None:
    """Aborted ones that wait for their turn count, too."""
    bench.servers[0].hold = asyncio.Event()
    for _ in range(MAX_OPEN):
        last = await bench.keeper.begin(LOAD)
    await bench.keeper.abort(last.number, "ann")
    with pytest.raises(TooManyOperations):
        await bench.keeper.begin(LOAD)


async def test_the_history_is_bounded(bench: Bench) -> None:
    """The oldest one gives its place to the newest, in the store as well."""
    for _ in range(MAX_KEPT + 2):
        await bench.run(LOAD._replace(dry_run=True, endpoints=("r1",)))
    kept = [each.number for each in bench.keeper.operations("", 0, 1000)]
    assert kept == list(range(MAX_KEPT + 2, 2, -1))
    assert bench.store.value(KEY.format(MAX_KEPT)) is None
    await bench.keeper.stop()
    await bench.start()
    assert [each.number for each in bench.keeper.operations("", 0, 1000)] == kept


async def test_an_operation_that_cannot_be_stored_does_not_begin(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart could not undo it."""

    def full(_key: str, _value: str) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(bench.store, "put_value", full)
    with pytest.raises(StoreError):
        await bench.keeper.begin(LOAD)
    assert bench.keeper.operations("", 0, 9) == []


async def test_a_damaged_record_is_left_out(bench: Bench) -> None:
    """It does not keep the server from starting."""
    bench.store.put_value(KEY.format(0), "{")
    await bench.start()
    assert (await bench.run()).phase == "done"


async def test_replicas_that_are_gone_are_named(bench: Bench) -> None:
    """All at once, with nothing changed."""
    await bench.servers[1].__aexit__()
    made = await bench.run()
    assert made.phase == "undone"
    assert made.why.startswith("r2: it cannot be asked: ")


async def test_an_unknown_operation_cannot_be_aborted(bench: Bench) -> None:
    """The numbers that there are, are told."""
    await bench.run()
    with pytest.raises(UnknownName, match="there are 1"):
        await bench.keeper.abort(7, "ann")


async def test_a_model_is_out_of_use_before_it_is_unloaded(bench: Bench) -> None:
    """On each replica when its turn comes, and until the operation has ended."""
    await bench.run()
    made = await bench.run(UNLOAD._replace(endpoints=("r1", "r2"), parallel=1))
    assert made.phase == "done"
    assert bench.leaving.seen == [("r1", True), ("r2", True)]
    assert bench.leaving.held == {}
    assert bench.having == ["r3"]


async def test_an_unload_of_which_clients_were_not_told_is_refused(bench: Bench) -> None:
    """They might send requests there; with force it goes on, and says so."""
    await bench.run()
    bench.leaving.outcome = ModelDrained(("picker p is not connected",))
    wanted = UNLOAD._replace(endpoints=("r1",))
    made = await bench.run(wanted)
    assert (made.phase, bench.having) == ("undone", ["r1", "r2", "r3"])
    assert "r1: not unloaded: picker p is not connected: it may still be sent" in made.why
    assert "--force" in made.why
    assert bench.servers[0].calls == ["load"]
    assert bench.leaving.held == {}
    made = await bench.run(wanted._replace(force=True))
    assert (made.phase, bench.having) == ("done", ["r2", "r3"])
    texts = [each.text for each in made.steps]
    assert "r1: goes on although picker p is not connected" in texts


async def test_an_unload_says_what_it_does_not_wait_for(bench: Bench) -> None:
    """It waits for a time; then Triton lets end what runs."""
    await bench.run()
    bench.leaving.outcome = ModelDrained((), ("picker p: 2 requests for m on r1",))
    made = await bench.run(UNLOAD._replace(endpoints=("r1",)))
    assert made.phase == "done"
    texts = [each.text for each in made.steps]
    assert "r1: goes on although it runs: picker p: 2 requests for m on r1" in texts


async def test_a_failed_load_takes_the_model_out_of_use_first(bench: Bench) -> None:
    """Requests may have come to it as soon as it was loaded; who was not told does not stop it."""
    bench.leaving.outcome = ModelDrained(("picker p is not connected",))
    bench.servers[2].load_error = "no"
    made = await bench.run(LOAD._replace(parallel=1))
    assert (made.phase, bench.having) == ("undone", [])
    assert bench.leaving.seen[:2] == [("r1", True), ("r2", True)]
    assert bench.leaving.held == {}


async def test_a_restart_keeps_a_model_out_of_use(bench: Bench) -> None:
    """Before the fleet is published, and until the operation that goes on has ended."""
    await bench.run()
    bench.leaving.hangs = True
    made = await bench.keeper.begin(UNLOAD._replace(endpoints=("r1",)))
    async with asyncio.timeout(WAIT_S):
        await bench.leaving.reached.wait()
    await bench.keeper.stop()
    bench.leaving = Leaving(bench.servers)
    endpoints = [each.endpoint for each in bench.servers]
    spec = pool(default=True, match={"models": ["m"]}, endpoints=endpoints)
    control: Any = SimpleNamespace(fleet=fleet(spec), revision=1)
    actions = ModelActions(control, bench._calls, leaving=bench.leaving)  # type: ignore[arg-type]  # enough
    bench.keeper = LoadKeeper(actions, bench.store, lambda: 2000)
    await bench.keeper.recall()
    assert bench.leaving.held == {("operation", made.number): {("r1", "m")}}
    await bench.keeper.start()
    assert await bench.keeper.ended(made.number, WAIT_S)
    assert bench.leaving.held == {}
    assert bench.having == ["r2", "r3"]


async def test_counters_are_told_by_those_replicas_that_have_them(bench: Bench) -> None:
    """Others, and those without the model, are left out."""
    counts = {name: {"count": 4, "ns": 8} for name in ("success", "fail", "compute_infer")}
    first, second, _ = bench.servers
    first.ready = second.ready = {"m": ["1"]}
    first.stats = {"model_stats": [{"name": "m", "version": "1", "inference_stats": counts}]}
    found = await bench.keeper.actions.answered("llm", "m", ["r1", "r2", "r3"])
    assert found == {"r1": Answered(4, 4, 4, 8)}
