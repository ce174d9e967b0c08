"""The operators' gRPC face, over a real channel."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace

import grpc
import pytest

from protos.tidegate.admin.v1 import admin_pb2, admin_pb2_grpc
from support.fleets import fleet
from xds_server.admin import service as module
from xds_server.admin.service import AdminServer, AdminService
from xds_server.control import Control
from xds_server.fleet.store import Store, StoreError
from xds_server.operation import Busy

TEXT = fleet().model_dump_json()


class FakeAds:
    """An ADS server with two clients that acknowledge at once, one of them with a problem."""

    settled = True

    def publish(self, plan) -> FakeAds:
        """Take the stages."""
        assert list(plan())
        return self

    async def wait(self, timeout_s: float) -> SimpleNamespace:
        """Return an outcome."""
        assert timeout_s >= 0
        problem = SimpleNamespace(client="envoy-2", state="NACKED", type="RDS", message="no")
        return SimpleNamespace(
            state="done", clients=2, acked=1, problems=(problem,), channels=("RDS",), elapsed_s=0.1
        )

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
                node="envoy-1",
                kind="envoy",
                protocol="delta",
                peer="ipv4:127.0.0.1:9",
                connected_s=12.0,
                types=(view,),
            ),
        )

    def in_flight(self) -> dict[str, int]:
        """Return a count."""
        return {"r1": 4}


@dataclass
class Admin:
    """A running server and its client."""

    control: Control
    stub: admin_pb2_grpc.AdminStub


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    """Return a server that runs the usual fleet as revision 1."""
    ads = FakeAds()
    with closing(Store(None)) as store:
        control = Control(store, ads, lambda: 5, lambda: 1.0)
        await control.start(TEXT, "fleet.yaml")
        server = AdminServer(AdminService(control, ads))
        address = server.bind("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield Admin(control, admin_pb2_grpc.AdminStub(channel))
        await server.stop(0)
        await control.stop()


async def refused(call) -> tuple[grpc.StatusCode, str]:
    """Return how a call was refused."""
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


async def test_who_does_not_wait_gets_no_time(admin: Admin) -> None:
    """Unknown is unset, not 0."""
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


async def test_a_rollback_makes_a_revision(admin: Admin) -> None:
    """Revisions are listed newest first, with who and why."""
    await admin.stub.SetWeights(
        admin_pb2.SetWeightsRequest(pool="llm", weights={"canary": 20}, options=options())
    )
    request = admin_pb2.RollbackRequest(revision=1, options=options())
    assert (await admin.stub.Rollback(request)).revision == 3
    listed = (await admin.stub.ListRevisions(admin_pb2.ListRevisionsRequest())).revisions
    assert [revision.number for revision in listed] == [3, 2, 1]
    assert (listed[0].author, listed[0].reason, listed[0].at_unix_ms) == ("ann", "why", 5)
    limited = await admin.stub.ListRevisions(admin_pb2.ListRevisionsRequest(limit=1))
    assert len(limited.revisions) == 1


async def test_the_fleet_can_be_read(admin: Admin) -> None:
    """As JSON of the fleet file's schema, with what is in flight."""
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


async def test_a_bad_fleet_is_an_invalid_argument(admin: Admin) -> None:
    """Every fault has its line; the source is the caller's."""
    request = admin_pb2.ApplyRequest(fleet="pools:\n- {}\n", source="mine.yaml", options=options())
    code, details = await refused(admin.stub.Apply(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.splitlines() == [
        "mine.yaml:2: pools[0].name: missing; write `name:` here",
        "mine.yaml:2: pools[0].match: missing; write `match:` here",
    ]


async def test_long_errors_fit_into_a_header(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers bound their headers, and a call must not fail without a word."""
    monkeypatch.setattr(module, "MAX_STATUS_BYTES", 20)
    request = admin_pb2.ApplyRequest(fleet="pools:\n- {}\n", options=options())
    _, details = await refused(admin.stub.Apply(request))
    assert details == "fleet:2: pools[0].na ..."


@pytest.mark.parametrize("call", ["pool", "variant", "endpoint", "revision"])
async def test_unknown_names_are_not_found(admin: Admin, call: str) -> None:
    """One sentence with the nearest name."""
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
    """No caller keeps a call open for ever."""
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
    """A caller can tell what may be tried again."""

    async def fail(*_args) -> None:
        raise error

    monkeypatch.setattr(admin.control, "set_draining", fail)
    code, details = await refused(
        admin.stub.SetDraining(admin_pb2.SetDrainingRequest(endpoint="r1"))
    )
    assert (code, details) == (status, str(error))


async def test_a_request_is_bounded(admin: Admin) -> None:
    """A fleet above the file's bound does not even arrive."""
    request = admin_pb2.ApplyRequest(fleet="#" * (module.MAX_MESSAGE_BYTES + 1))
    code, _ = await refused(admin.stub.Apply(request))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_taken_port_is_an_error(admin: Admin) -> None:
    """Two servers on one port would each answer half of the calls."""
    service = AdminService(admin.control, FakeAds())
    first, second = AdminServer(service), AdminServer(service)
    address = first.bind("127.0.0.1:0")
    with pytest.raises(OSError, match="cannot listen on"):
        second.bind(address)
    await first.stop(0)
    await second.stop(0)
