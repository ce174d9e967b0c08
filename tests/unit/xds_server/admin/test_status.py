"""The status of the whole, from reports of real pickers' form to the answers of the admin API."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from support.fleets import fleet
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.fleet.v1 import report_pb2 as pb
from xds_server.admin.status import LET_IN_S, StatusBoard, known_names
from xds_server.applications.traffic.book import TrafficBook
from xds_server.applications.traffic.verdict import SILENT_PICKER_S
from xds_server.control.fleet_control import Control
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.change import set_draining
from xds_server.fleet.store import RevisionStore
from xds_server.protocol.publication import PublicationOutcome
from xds_server.server.reports import PickerReports

OPTIONS = ChangeOptions("ann", "why")


class FakePublisher:
    """A publisher whose publications end at once, and two connected clients."""

    settled = True
    outcome = PublicationOutcome("done", 2, 2, (), (), 0.1)

    def __init__(self) -> None:
        self.loads = {"r1": 4}
        self.seen: list[Any] = [
            SimpleNamespace(node=name, kind=kind, quarantine="", types=())
            for name, kind in (("e1", "envoy"), ("p1", "picker"))
        ]

    def publish(self, plan: Any, **_: Any) -> FakePublisher:
        """Accept the stages."""
        assert list(plan())
        return self

    def in_force(self, _: str) -> None:
        """Return nothing: every publication ends at once."""

    async def wait(self, _: float) -> PublicationOutcome:
        """Return the outcome."""
        return self.outcome

    def clients(self) -> list[Any]:
        """Return the clients."""
        return self.seen

    def in_flight(self) -> dict[str, int]:
        """Return the loads."""
        return self.loads


class Whole:
    """A control server's parts, with a clock that tests advance."""

    def __init__(self, store: RevisionStore) -> None:
        self.now = 1000.0
        self.ads = FakePublisher()
        self.control = Control(
            store, self.ads, lambda: 5, lambda: 1.0, lambda _: self.traffic.fleet_changed()
        )
        self.traffic = TrafficBook(lambda: known_names(self.control), self.clock)
        self.reports = PickerReports(lambda: None, clock=self.clock)
        self.reports.traffic = self.traffic
        self.board = StatusBoard(
            self.control,
            self.ads,
            self.traffic,
            self.reports.replicas,
            self.reports.placements,
            clock=self.clock,
        )
        self.numbers = iter(range(1, 10_000))

    def clock(self) -> float:
        """Return monotonic seconds."""
        return self.now

    def take(self, report: pb.PickerReport) -> str:
        """Receive a report on a stream of its own, which stays open."""
        return self.reports._take(report.picker_id, next(self.numbers), report)

    def tell(self, *variants: pb.VariantTraffic, picker: str = "p1", **more: Any) -> None:
        """Let a picker report what it counted, and what more it says."""
        endpoints = more.pop("endpoints", ())
        traffic = pb.Traffic(life=next(self.numbers), variants=variants, endpoints=endpoints)
        assert not self.take(pb.PickerReport(picker_id=picker, traffic=traffic, **more))

    def status(self) -> admin_pb2.GetStatusResponse:
        """Return the status."""
        answer = admin_pb2.GetStatusResponse()
        self.board.fill(answer)
        return answer

    def replicas(self) -> dict[str, admin_pb2.ReplicaStatus]:
        """Return the replicas by id."""
        return {each.endpoint: each for each in self.board.replicas("")}

    def requests(self) -> int:
        """Return the requests of the last minute in all variants."""
        return sum(each.requests for pool in self.status().pools for each in pool.variants)


@pytest.fixture
async def whole() -> AsyncIterator[Whole]:
    """Return the parts, with the usual fleet in force."""
    with closing(RevisionStore(None)) as store:
        made = Whole(store)
        await made.control.start(fleet().model_dump_json(), "fleet.yaml")
        yield made
        await made.control.stop()


@dataclasses.dataclass
class Worker:
    """A picker's worker that counts and reports as the real one does."""

    whole: Whole
    name: str
    group: str = ""
    life: int = 0
    requests: int = 0
    failed: int = 0

    def start(self) -> Worker:
        """Begin a new life."""
        self.life, self.requests, self.failed = next(self.whole.numbers), 0, 0
        return self

    def report(self, more: int = 0, failed: int = 0, *conditions: pb.Condition) -> pb.PickerReport:
        """Count further requests and report."""
        self.requests += more
        self.failed += failed
        every = pb.Histogram(buckets=[40], counts=[self.requests])
        made = pb.PickerReport(
            picker_id=self.name,
            group=self.group,
            traffic=pb.Traffic(
                life=self.life,
                age_seconds=1.0,
                variants=[
                    pb.VariantTraffic(
                        pool="llm",
                        variant="stable",
                        requests=self.requests,
                        failed={"error": self.failed} if self.failed else {},
                        duration=every,
                        first_byte=every,
                        prompt_tokens=self.requests * 100,
                        cached_tokens=self.requests * 25,
                    )
                ],
                endpoints=[
                    pb.EndpointTraffic(
                        pool="llm", id="r1", requests=self.requests, failed=self.failed
                    )
                ],
            ),
            replicas=pb.ReplicaStates(
                replicas=[
                    pb.ReplicaState(
                        pool="llm", id="r1", conditions=conditions, reading_age_ms=1500
                    ),
                    pb.ReplicaState(pool="llm", id="r2"),
                ]
            ),
        )
        assert not self.whole.take(made)
        return made


FROZEN = (
    pb.Condition(name="ejected", cause="no sign of life", left_seconds=12.0),
    pb.Condition(name="frozen"),
)


async def test_without_reports_the_fleet_is_shown(whole: Whole) -> None:
    """Older pickers report neither states nor traffic: what is not known counts as usable."""
    assert not whole.take(pb.PickerReport(picker_id="old", endpoints=[pb.EndpointLoad(id="r1")]))
    status = whole.status()
    assert (status.verdict, list(status.reasons)) == ("OK", [])
    (row,) = (each for each in whole.replicas().values() if each.endpoint == "r1")
    assert (row.state, row.usable, row.pickers, row.in_flight) == ("in use", True, 0, 4)
    assert not row.HasField("age_seconds")
    assert not status.pools[0].variants[0].HasField("duration_p50")


async def test_two_pickers_of_two_workers_with_restarts_count_each_request_once(
    whole: Whole,
) -> None:
    """Each worker and the reports of each picker restart in the middle, beside an older picker."""
    crew = [
        Worker(whole, f"{picker}.w{number}", picker).start()
        for picker in ("p1", "p2")
        for number in range(2)
    ]
    for step in range(8):
        for number, worker in enumerate(crew):
            if step == number + 2:  # its process restarts
                worker.start()
            made = worker.report(more=5, failed=1 if number == 0 else 0)
            whole.take(made)  # its stream broke, and all is sent again
            whole.now += 0.1
        whole.take(pb.PickerReport(picker_id="old"))
        whole.now += 5.0
    assert whole.requests() == 8 * 4 * 5
    (stable,) = (each for each in whole.status().pools[0].variants if each.variant == "stable")
    assert dict(stable.failed) == {"error": 8}
    assert stable.errors == 8
    assert stable.cached_tokens * 4 == stable.prompt_tokens
    assert stable.HasField("first_byte_p99")
    assert whole.replicas()["r1"].requests == 160
    assert {each.pickers for each in whole.replicas().values() if each.endpoint == "r1"} == {2}
    assert sum(each.requests for each in whole.board.minutes("llm")) == 160
    assert not list(whole.board.minutes("other"))


async def test_a_restarted_control_server_does_not_count_the_past(whole: Whole) -> None:
    """What a picker counted for hours is no traffic of this minute."""
    worker = Worker(whole, "p1").start()
    made = worker.report(more=0)
    made.traffic.life, made.traffic.age_seconds = 99, 3600.0
    made.traffic.variants[0].requests = 10_000
    whole.take(made)
    assert whole.requests() == 0


async def test_a_frozen_replica_is_named(whole: Whole) -> None:
    """In the first line of the status, in its pool's count and in its own row."""
    Worker(whole, "p1").start().report(10, 0, *FROZEN)
    status = whole.status()
    assert (status.verdict, whole.board.level()) == ("DEGRADED", 1)
    assert status.why == "replica r1 of pool llm is frozen 12 s more"
    (stable,) = (each for each in status.pools[0].variants if each.variant == "stable")
    assert stable.replicas - stable.usable == 1
    row = whole.replicas()["r1"]
    assert (row.state, row.usable, row.age_seconds) == ("frozen 12 s more", False, 1.5)
    assert [each.name for each in row.conditions] == ["ejected", "frozen"]
    whole.now += 20.0  # the picker has fallen silent: its word has aged out
    assert whole.replicas()["r1"].state == "in use"


async def test_a_replica_that_is_let_in_again_is_no_alarm(whole: Whole) -> None:
    """Pickers have yet to look at it after its restart; what lasts is a reason."""
    worker = Worker(whole, "p1").start()
    condition = pb.Condition(name="not-ready", cause="refuses connections")
    for draining in (True, False):
        await whole.control.change(
            lambda fleet, it=draining: set_draining(fleet, "r1", it), OPTIONS
        )
        worker.report(0, 0, condition)
        assert whole.status().verdict == "OK"
        whole.now += 1.0
    whole.now += LET_IN_S
    worker.report(0, 0, condition)
    why = "replica r1 of pool llm is not ready: refuses connections"
    assert (whole.status().verdict, whole.status().why) == ("DEGRADED", why)


async def test_a_picker_that_hangs_is_named(whole: Whole) -> None:
    """Its stream is open, and its reports have stopped."""
    Worker(whole, "p1").start().report(10, 0)
    whole.now += SILENT_PICKER_S - 0.1
    assert whole.status().verdict == "OK"
    whole.now += 0.2
    why = "picker p1 is connected and has not reported for 8 s: it hangs"
    assert (whole.status().verdict, whole.status().why) == ("DEGRADED", why)


async def test_failures_name_their_replica(whole: Whole) -> None:
    """The reason says where requests fail."""
    whole.tell(
        pb.VariantTraffic(pool="llm", variant="stable", requests=50, failed={"error": 9}),
        endpoints=[pb.EndpointTraffic(pool="llm", id="r1", requests=25, failed=9)],
    )
    why = "pool llm: 9 of 50 requests failed in the last minute, 9 at r1 (stable)"
    assert (whole.status().verdict, whole.status().why) == ("DEGRADED", why)


async def test_what_envoy_refuses_is_a_reason(whole: Whole) -> None:
    """Also where it knows no pool."""
    for pool in ("llm", ""):
        refused = pb.VariantTraffic(pool=pool, requests=6, failed={"rate-limited": 6})
        whole.tell(refused, picker=f"p-{pool}")
    assert list(whole.status().reasons) == [
        "pool llm: 6 of 6 requests (100%) were refused in the last minute: rate-limited (6)",
        "6 of 6 requests (100%) were refused in the last minute: rate-limited (6)",
    ]


async def test_a_full_queue_is_a_reason_in_words(whole: Whole) -> None:
    """With its share; callers that gave up and whose deadlines passed have left."""
    failed = {"queue-full": 20, "saturated": 5, "deadline-passed": 5}
    whole.tell(
        pb.VariantTraffic(pool="llm", requests=30, failed=failed),
        pb.VariantTraffic(pool="llm", variant="stable", requests=25, failed={"gave-up": 3}),
    )
    refused = "pool llm: 25 of 50 requests (50%) were refused in the last minute:"
    assert list(whole.status().reasons) == [
        f"{refused} the queue is full (20), every replica is at its limit (5)",
        "pool llm: 8 of 30 callers (27%) left in the last minute before an answer began",
    ]


async def test_what_waits_is_told_of_all_pickers(whole: Whole) -> None:
    """How many, the longest expected wait, and how long requests have waited; not 0 if unknown."""
    assert not whole.status().pools[0].HasField("waiting")
    waits = pb.VariantTraffic(pool="llm", duration=pb.Histogram(buckets=[50], counts=[3]))
    for picker, wait_s in (("p1", 0.5), ("p2", None)):
        states = pb.ReplicaStates()
        states.queues.add(pool="llm", waiting=4, wait_seconds=wait_s)
        whole.tell(waits, picker=picker, replicas=states)
    pool = whole.status().pools[0]
    assert (pool.waiting, pool.wait_seconds, pool.queued) == (8, 0.5, 6)
    assert pool.queued_p50 == pool.queued_p99 == pytest.approx(0.112, rel=0.1)


async def test_limits_of_replicas_are_told_with_their_sources(whole: Whole) -> None:
    """The lowest that a picker keeps."""
    for picker, most in (("p1", 20), ("p2", 10)):
        states = pb.ReplicaStates()
        one = states.replicas.add(pool="llm", id="r1")
        one.limits.add(most=most, source="declared")
        whole.take(pb.PickerReport(picker_id=picker, replicas=states))
    (limit,) = whole.replicas()["r1"].limits
    assert (limit.model, limit.most, limit.source) == ("", 10, "declared")


async def test_a_slow_replica_is_named(whole: Whole) -> None:
    """It stays usable."""
    states = pb.ReplicaStates()
    states.replicas.add(pool="llm", id="r1").notes.add(name="slow", cause="10.1 times")
    whole.take(pb.PickerReport(picker_id="p1", replicas=states))
    assert whole.status().why == "replica r1 of pool llm is slow: 10.1 times"
    row = whole.replicas()["r1"]
    assert (row.state, row.usable) == ("slow: 10.1 times", True)


async def test_what_many_replicas_have_is_one_reason(whole: Whole) -> None:
    """A pool that became slower, or queues, is one fact."""
    states = pb.ReplicaStates()
    for name in ("r1", "r2"):
        notes = states.replicas.add(pool="llm", id=name).notes
        notes.add(name="queue", cause="40 requests wait", for_seconds=6.0)
        notes.add(name="slower", cause="5.0 times", for_seconds=6.0)
        notes.add(name="tokens", cause="it makes 9 tokens", for_seconds=6.0)
    whole.take(pb.PickerReport(picker_id="p1", replicas=states))
    whole.now += 2.0
    assert list(whole.status().reasons) == [
        "pool llm has a queue for 8 s: 40 requests wait at r1; also r2",
        "replica r1 of pool llm is slower for 8 s: 5.0 times; also r2",
        "replica r1 of pool llm has other tokens for 8 s: it makes 9 tokens; also r2",
    ]
    (_, note, _) = whole.replicas()["r1"].notes
    assert (note.name, note.cause, note.for_seconds) == ("slower", "5.0 times", 8.0)


async def test_a_replica_is_shown_beside_its_peers_and_its_past(whole: Whole) -> None:
    """Means of the last minute, and of the hour before; what is not known is not 0."""
    assert not whole.replicas()["r1"].counted

    def report(factor: int, *names: str) -> None:
        traffic = pb.Traffic(life=1)
        for name in names:
            traffic.endpoints.add(
                pool="llm",
                id=name,
                requests=9 * factor,
                timed=8 * factor,
                timed_us=800_000 * factor,
                begun=4 * factor,
                begun_us=100_000 * factor,
            )
        whole.take(pb.PickerReport(picker_id="p1", traffic=traffic, replicas=pb.ReplicaStates()))

    report(1, "r1")
    whole.now += 10.0
    report(2, "r1", "r2")
    for _ in range(6):
        whole.now += 10.0
        report(2, "r1")
    report(3, "r1")
    rows = whole.replicas()
    assert (rows["r1"].counted, rows["r2"].counted) == (True, True)
    assert (rows["r1"].minute.requests, rows["r1"].minute.duration) == (8, 0.1)
    assert rows["r1"].minute.first_byte == 0.025
    assert rows["r1"].hour.requests == 16
    assert not rows["r1"].HasField("peers")
    assert not rows["r2"].HasField("minute")
    assert rows["r2"].peers.requests == 8
    whole.now += 20.0  # the picker has fallen silent
    assert not whole.replicas()["r1"].counted


async def test_a_condition_tells_since_when(whole: Whole) -> None:
    """The report is as old as it is."""
    states = pb.ReplicaStates()
    states.replicas.add(pool="llm", id="r1").conditions.add(
        name="not-ready", cause="refuses connections", for_seconds=3.0
    )
    whole.take(pb.PickerReport(picker_id="p1", replicas=states))
    whole.now += 4.0
    assert whole.replicas()["r1"].state == "not ready for 7 s: refuses connections"


async def test_refusals_are_shown_by_pool(whole: Whole) -> None:
    """Callers' mistakes are no reason for a verdict, a want of replicas is."""
    for number, (reason, word) in enumerate((("unknown-model", "OK"), ("saturated", "DEGRADED"))):
        refused = pb.VariantTraffic(pool="llm", requests=6, failed={reason: 6})
        whole.tell(refused, picker=f"p{number}")
        assert whole.status().verdict == word
    assert whole.status().pools[0].refused == {"unknown-model": 6, "saturated": 6}


async def test_a_drain_says_how_many_are_left(whole: Whole) -> None:
    """And is no reason for a verdict: an operator wanted it. It differs from the file."""
    await whole.control.change(lambda fleet: set_draining(fleet, "r1", True), OPTIONS)
    Worker(whole, "p1").start().report(0, 0, *FROZEN)
    status = whole.status()
    assert status.verdict == "OK"
    assert whole.replicas()["r1"].state == "draining, 4 left"
    assert any("r1" in line for line in status.drift)


async def test_loads_are_unknown_without_a_picker(whole: Whole) -> None:
    """Unset, not 0."""
    del whole.ads.seen[1]
    assert not whole.replicas()["r1"].HasField("in_flight")
    assert "no picker" in whole.status().why


async def test_only_one_pool(whole: Whole) -> None:
    """A large fleet is asked for pool by pool."""
    assert {each.pool for each in whole.board.replicas("llm")} == {"llm"}
    assert not list(whole.board.replicas("nothing"))


async def test_a_bad_report_is_refused_and_nothing_is_kept(whole: Whole) -> None:
    """Neither its loads nor its states."""
    bad = pb.PickerReport(
        picker_id="p1",
        endpoints=[pb.EndpointLoad(id="r1", in_flight=1)],
        replicas=pb.ReplicaStates(replicas=[pb.ReplicaState(ramp_percent=101)]),
    )
    assert "ramp_percent" in whole.take(bad)
    assert not whole.reports.loads()
    assert not whole.reports.replicas.ages()


async def test_before_there_is_a_fleet_nothing_is_told() -> None:
    """The port answers only later, but a report may come at once."""
    with closing(RevisionStore(None)) as store:
        made = Whole(store)
        Worker(made, "p1").start().report(5)
        assert made.status() == admin_pb2.GetStatusResponse()
        assert made.board.level() == 0
        assert not made.replicas()
        await made.control.stop()


async def test_a_dry_run_tells_what_would_remain(whole: Whole) -> None:
    """What pickers leave alone does not count, and requests in flight are those of the moment."""
    options = dataclasses.replace(OPTIONS, dry_run=True)
    change = await whole.control.change(lambda fleet: set_draining(fleet, "r1", True), options)
    assert change.preview is not None
    found = whole.board.preview(change.preview)
    assert [(each.endpoint, each.in_flight) for each in found.draining] == [("r1", 4)]
    (stable, canary) = found.remaining
    assert (stable.variant, stable.usable, stable.usable_before) == ("stable", 1, 2)
    assert (canary.usable, canary.usable_before) == (1, 1)
    whole.ads.seen = []
    (unknown,) = whole.board.preview(change.preview).draining
    assert not unknown.HasField("in_flight")
