"""The admin service over a real channel."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf import any_pb2

from support.fleets import fleet
from support.operators import calls
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_api.names import CLUSTER_TYPE
from xds_server.admin.answers import explained as module
from xds_server.admin.csds import ClientStatusService
from xds_server.admin.server import MAX_MESSAGE_BYTES, AdminServer
from xds_server.admin.service import AdminService
from xds_server.control.fleet_control import Control
from xds_server.control.operation import Busy
from xds_server.fleet.store import RevisionStore, StoreError
from xds_server.protocol.messages import RefusedPeer, ResourceView
from xds_server.protocol.publication import ClientProblem, PublicationOutcome

TEXT = fleet().model_dump_json()


class FakeAds:
    """A fake ADS server with two clients that acknowledge at once, one of them with a problem."""

    settled = True

    outcome = PublicationOutcome(
        "done",
        clients=2,
        acked=1,
        problems=(ClientProblem("envoy-2", "NACKED", "RDS", "no"),),
        channels=("RDS",),
        elapsed_s=0.1,
        stage="remove",
    )

    def publish(self, plan, *, on_reject: str, quorum: float, waves: bool) -> FakeAds:
        """Accept the stages."""
        assert list(plan())
        assert (on_reject, quorum, waves) == ("quorum", 0.5, False)
        return self

    def in_force(self, _audience: str) -> None:
        """Return nothing: every publication ends at once."""

    async def wait(self, timeout_s: float) -> PublicationOutcome:
        """Return the outcome."""
        assert timeout_s >= 0
        return self.outcome

    def clients(self) -> tuple[SimpleNamespace, ...]:
        """Return one client."""
        view = SimpleNamespace(
            short="CDS",
            version_sent="v2",
            version_acked="v1",
            state="STALE",
            message="",
            pending_s=0.5,
            resources=3,
        )
        return (
            SimpleNamespace(
                group="",
                quarantine="refused 3 changes",
                twins=2,
                node="envoy-1",
                kind="envoy",
                protocol="delta",
                peer="ipv4:127.0.0.1:9",
                connected_s=12.0,
                types=(view,),
                build="1.36.4",
                lost=("this", "that"),
                number=7,
            ),
        )

    def resources(self, number: int) -> tuple[ResourceView, ...]:
        """Return a cluster that the client does not have yet."""
        assert number == 7
        packed = any_pb2.Any(type_url=CLUSTER_TYPE, value=b"\n\x03llm").SerializeToString()
        return (ResourceView(CLUSTER_TYPE, "llm", "v2", "v1", "STALE", packed),)

    def in_flight(self) -> dict[str, int]:
        """Return a count."""
        return {"r1": 4}


@dataclass
class Admin:
    """A running server and its client."""

    control: Control
    stub: admin_pb2_grpc.AdminStub
    refused: list[RefusedPeer]


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    """Return a server that runs the usual fleet as revision 1."""
    ads = FakeAds()
    with closing(RevisionStore(None)) as store:
        control = Control(store, ads, lambda: 5, lambda: 1.0)
        await control.start(TEXT, "fleet.yaml")
        found: list[RefusedPeer] = []
        passes = {"p1": {"no-pool": 3}}
        service = AdminService(control, ads, refused=lambda: found, passes=lambda: passes)
        server = AdminServer(service, ClientStatusService(ads), calls())
        address = server.bind("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield Admin(control, admin_pb2_grpc.AdminStub(channel), found)
        await server.stop(0)
        await control.stop()


async def refused(call) -> tuple[grpc.StatusCode, str]:
    """Return the status of a failed call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def options(**more) -> admin_pb2.ChangeOptions:
    """Return options of a change."""
    return admin_pb2.ChangeOptions(author="ann", reason="why", **more)


async def test_a_change_is_answered_with_its_acknowledgements(admin: Admin) -> None:
    """Channels, counts, problems and time."""
    result = await admin.stub.SetWeights(
        admin_pb2.SetWeightsRequest(pool="llm", weights={"canary": 20}, options=options(wait=True))
    )
    assert result.revision == 2
    assert list(result.changes) == ["pool llm: variant canary weight 10 -> 20"]
    assert (result.clients, result.acked, list(result.channels)) == (2, 1, ["RDS"])
    assert result.problems[0].client == "envoy-2"
    assert result.HasField("elapsed_ms")


async def test_without_waiting_there_is_no_time(admin: Admin) -> None:
    """An unknown time is unset, not 0."""
    result = await admin.stub.SetDraining(
        admin_pb2.SetDrainingRequest(endpoint="llm/r1", draining=True, options=options())
    )
    assert not result.HasField("elapsed_ms")
    assert result.clients == 1
    assert admin.control.fleet.pools[0].endpoints[0].draining


async def test_a_fleet_is_applied(admin: Admin) -> None:
    """A dry run shows the difference only."""
    text = TEXT.replace('"fallbacks":2', '"fallbacks":1')
    request = admin_pb2.ApplyRequest(fleet=text, options=options(dry_run=True))
    result = await admin.stub.Apply(request)
    assert list(result.changes) == ["pool llm: routing.fallbacks 2 -> 1"]
    assert result.revision == 1
    request.options.dry_run = False
    assert (await admin.stub.Apply(request)).revision == 2


async def test_resources_of_clients_are_shown(admin: Admin) -> None:
    """With both versions, and what they say where that is asked for."""
    answer = await admin.stub.GetConfig(admin_pb2.GetConfigRequest(content=True))
    (client,) = answer.clients
    (found,) = client.resources
    assert (client.node, found.type, found.name) == ("envoy-1", "CDS", "llm")
    assert (found.version, found.version_acked, found.state) == ("v2", "v1", "STALE")
    assert json.loads(found.json)["name"] == "llm"
    code, said = await refused(admin.stub.GetConfig(admin_pb2.GetConfigRequest(client="envoy-9")))
    assert (code, "did you mean 'envoy-1'" in said) == (grpc.StatusCode.NOT_FOUND, True)


async def test_a_rollback_makes_a_revision(admin: Admin) -> None:
    """Revisions are listed newest first, with author and reason."""
    await admin.stub.SetWeights(
        admin_pb2.SetWeightsRequest(pool="llm", weights={"canary": 20}, options=options())
    )
    request = admin_pb2.RollbackRequest(revision=1, options=options())
    assert (await admin.stub.Rollback(request)).revision == 3
    listed = (await admin.stub.ListRevisions(admin_pb2.ListRevisionsRequest())).revisions
    assert [revision.number for revision in listed] == [3, 2, 1]
    newest = listed[0]
    assert (newest.author, newest.reason, newest.at_unix_ms) == ("anonymous (ann)", "why", 5)
    limited = await admin.stub.ListRevisions(admin_pb2.ListRevisionsRequest(limit=1))
    assert len(limited.revisions) == 1


async def test_the_fleet_can_be_read(admin: Admin) -> None:
    """As JSON of the fleet file's schema, with the requests in flight."""
    answer = await admin.stub.GetFleet(admin_pb2.GetFleetRequest())
    assert answer.revision == 1
    assert json.loads(answer.fleet_json)["pools"][0]["name"] == "llm"
    assert dict(answer.in_flight) == {"r1": 4}


async def test_the_status_shows_each_client(admin: Admin) -> None:
    """And why the file is not in force."""
    admin.control.file_error = "fleet.yaml:1: bad"
    status = await admin.stub.GetStatus(admin_pb2.GetStatusRequest())
    assert (status.revision, status.settled, status.file_error) == (1, True, "fleet.yaml:1: bad")
    (client,) = status.clients
    assert (client.node, client.kind, client.protocol) == ("envoy-1", "envoy", "delta")
    assert (client.types[0].type, client.types[0].state) == ("CDS", "STALE")
    assert (client.build, list(client.lost)) == ("1.36.4", ["this", "that"])


async def test_status_has_what_is_not_stored_and_who_is_refused(admin: Admin) -> None:
    """Both are silent otherwise."""
    admin.refused.append(RefusedPeer("ipv4:10.0.0.9:5", "old", "use ADS", 3, 2.5))
    admin.control.journal.fault = "disk full"
    status = await admin.stub.GetStatus(admin_pb2.GetStatusRequest())
    assert (status.store_error, list(status.unwritten)) == ("disk full", [])
    assert [(each.picker, dict(each.by_reason)) for each in status.passes] == [
        ("p1", {"no-pool": 3})
    ]
    (found,) = status.refused
    assert (found.peer, found.node, found.reason) == ("ipv4:10.0.0.9:5", "old", "use ADS")
    assert (found.count, found.last_seconds) == (3, 2.5)


async def test_a_bad_fleet_is_an_invalid_argument(admin: Admin) -> None:
    """Every fault has its line; the caller names the source."""
    request = admin_pb2.ApplyRequest(
        fleet="pools:\n- {match: 1}\n", source="mine.yaml", options=options()
    )
    code, details = await refused(admin.stub.Apply(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.splitlines() == [
        "mine.yaml:2: pools[0].name: missing; write `name:` here",
        "mine.yaml:2: pools[0].match: 1 stands where a mapping belongs; write `key: value` lines",
    ]


async def test_long_errors_fit_into_a_header(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers bound the size of headers; the status text must not exceed it."""
    monkeypatch.setattr(module, "MAX_STATUS_BYTES", 20)
    request = admin_pb2.ApplyRequest(fleet="pools:\n- {}\n", options=options())
    _, details = await refused(admin.stub.Apply(request))
    assert details == "fleet:2: pools[0].na ..."


@pytest.mark.parametrize("call", ["pool", "variant", "endpoint", "revision"])
async def test_unknown_names_are_not_found(admin: Admin, call: str) -> None:
    """The error names the closest known name."""
    stub = admin.stub
    calls = {
        "pool": lambda: stub.SetWeights(
            admin_pb2.SetWeightsRequest(pool="lm", weights={"stable": 1})
        ),
        "variant": lambda: stub.SetWeights(
            admin_pb2.SetWeightsRequest(pool="llm", weights={"stabel": 1})
        ),
        "endpoint": lambda: stub.SetDraining(admin_pb2.SetDrainingRequest(endpoint="r")),
        "revision": lambda: stub.Rollback(admin_pb2.RollbackRequest(revision=77)),
    }
    code, details = await refused(calls[call]())
    assert code is grpc.StatusCode.NOT_FOUND
    assert details.startswith(f"no {call}")


@pytest.mark.parametrize("seconds", [-1.0, 1e9, float("nan"), float("inf")])
async def test_a_timeout_is_in_range(admin: Admin, seconds: float) -> None:
    """The time for which a call stays open is bounded."""
    request = admin_pb2.SetWeightsRequest(
        pool="llm", weights={"stable": 1}, options=options(timeout_seconds=seconds)
    )
    code, details = await refused(admin.stub.SetWeights(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "timeout_seconds" in details


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Busy("busy"), grpc.StatusCode.ABORTED),
        (StoreError("full"), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_other_errors_have_their_status(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, error: Exception, status: grpc.StatusCode
) -> None:
    """The status tells the caller which calls may be retried."""

    async def fail(*_args) -> None:
        raise error

    monkeypatch.setattr(admin.control, "change", fail)
    code, details = await refused(
        admin.stub.SetDraining(admin_pb2.SetDrainingRequest(endpoint="r1"))
    )
    assert (code, details) == (status, str(error))


async def test_a_request_is_bounded(admin: Admin) -> None:
    """A fleet above the file's bound is not received."""
    request = admin_pb2.ApplyRequest(fleet="#" * (MAX_MESSAGE_BYTES + 1))
    code, _ = await refused(admin.stub.Apply(request))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_port_in_use_is_an_error(admin: Admin) -> None:
    """Two servers on one port would each get half of the calls."""
    service = AdminService(admin.control, FakeAds())
    status = ClientStatusService(FakeAds())
    first, second = (AdminServer(service, status, calls()) for _ in range(2))
    address = first.bind("127.0.0.1:0")
    with pytest.raises(OSError, match="cannot listen on"):
        second.bind(address)
    await first.stop(0)
    await second.stop(0)


async def test_limits_ramps_and_the_brake_are_set_field_by_field(admin: Admin) -> None:
    """A field that is not set keeps its value; 0 is a value."""
    result = await admin.stub.SetBreaker(
        admin_pb2.SetBreakerRequest(
            pool="llm", max_requests=9, per_endpoint_in_flight=0, options=options()
        )
    )
    assert list(result.changes) == ["pool llm: circuit_breaker.max_requests 1024 -> 9"]
    result = await admin.stub.SetSlowStart(
        admin_pb2.SetSlowStartRequest(pool="llm", window=0, options=options())
    )
    assert list(result.changes) == ["pool llm: slow_start.window 30s -> 0s"]
    result = await admin.stub.SetDropOverload(
        admin_pb2.SetDropOverloadRequest(pool="llm", percent=12.5, options=options())
    )
    assert list(result.changes) == ["pool llm: drop_overload 0.0 -> 12.5"]


async def test_bad_limits_are_invalid_arguments(admin: Admin) -> None:
    """The error names the field."""
    for call, words in (
        (admin.stub.SetBreaker(admin_pb2.SetBreakerRequest(pool="llm")), "nothing given"),
        (
            admin.stub.SetBreaker(admin_pb2.SetBreakerRequest(pool="llm", max_requests=0)),
            "circuit_breaker.max_requests",
        ),
        (
            admin.stub.SetSlowStart(admin_pb2.SetSlowStartRequest(pool="llm", aggression=-1)),
            "slow_start.aggression",
        ),
        (
            admin.stub.SetDropOverload(admin_pb2.SetDropOverloadRequest(pool="llm", percent=101)),
            "between 0 and 100",
        ),
    ):
        code, details = await refused(call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert words in details


async def test_revisions_can_be_compared(admin: Admin) -> None:
    """Two by number, or one with the fleet in force."""
    for percent in (5, 10):
        await admin.stub.SetDropOverload(
            admin_pb2.SetDropOverloadRequest(pool="llm", percent=percent, options=options())
        )
    answer = await admin.stub.Diff(admin_pb2.DiffRequest(old_revision=1, new_revision=2))
    assert list(answer.changes) == ["pool llm: drop_overload 0.0 -> 5.0"]
    answer = await admin.stub.Diff(admin_pb2.DiffRequest(old_revision=2))
    assert list(answer.changes) == ["pool llm: drop_overload 5.0 -> 10.0"]
    code, _ = await refused(admin.stub.Diff(admin_pb2.DiffRequest(old_revision=9)))
    assert code is grpc.StatusCode.NOT_FOUND
