"""A fake admin API with canned responses, and a fixture that runs the command line."""

from __future__ import annotations

import json
import socket
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tidegate.cli.main import main
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = {
    "pools": [
        {
            "name": "llm",
            "match": {"models": ["toy-llm"]},
            "routing": {"policy": "prefix-affinity", "body": "peek"},
            "variants": [
                {"name": "stable", "weight": 95, "model_version": "1"},
                {"name": "canary", "weight": 5, "model_version": "2"},
            ],
            "endpoints": [
                {"id": "r1", "http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"},
                {"id": "r2", "grpc": "127.0.0.1:8011", "variant": "canary", "draining": True},
            ],
        }
    ]
}


class FakeAdmin(AdminServicer):
    """Returns the responses that a test sets and records the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        """What came with each change."""
        self.calls: dict[str, Any] = {}
        self.rollouts = api.CanaryRollouts()
        """Calls that an older control server does not know, by name."""
        self.result = api.ChangeResult(
            revision=8,
            changes=["pool llm: variant canary weight 5 -> 10"],
            channels=["RDS", "POOL"],
            clients=2,
            acked=2,
            elapsed_ms=21.4,
        )
        self.found = api.GetRequestResponse()
        self.error: tuple[grpc.StatusCode, str] | None = None
        self.fleet_json = json.dumps(FLEET)
        self.status = api.GetStatusResponse(
            revision=7,
            settled=True,
            reports={"picker-1": 1.0},
            clients=[
                api.ClientStatus(
                    node="envoy-1",
                    kind="envoy",
                    protocol="delta",
                    peer="127.0.0.1:5",
                    connected_seconds=12.3,
                    types=[
                        api.TypeStatus(type="CDS", state="SYNCED", resources=4),
                        api.TypeStatus(type="RTDS", state="NOT_SENT"),
                    ],
                ),
                api.ClientStatus(
                    node="picker-1",
                    kind="picker",
                    protocol="delta",
                    types=[api.TypeStatus(type="POOL", state="NACKED", message="no such policy")],
                ),
            ],
        )

    def _change(self, request: Any, context: grpc.ServicerContext) -> api.ChangeResult:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.error is not None:
            context.abort(*self.error)
        return self.result

    Apply = SetWeights = SetDraining = Rollback = _change
    SetBreaker = SetSlowStart = SetDropOverload = SetStandby = _change

    def Diff(self, request: Any, _context: Any) -> api.DiffResponse:  # noqa: N802 - gRPC
        """Return one difference between two revisions, none against the fleet in force."""
        self.requests.append(request)
        changes = ["pool llm removed"] if request.new_revision else []
        return api.DiffResponse(changes=changes)

    def GetFleet(self, _request: Any, _context: Any) -> api.GetFleetResponse:  # noqa: N802 - gRPC
        """Return the fleet; ``r1`` has three requests in flight."""
        return api.GetFleetResponse(revision=7, fleet_json=self.fleet_json, in_flight={"r1": 3})

    def GetStatus(self, _request: Any, _context: Any) -> api.GetStatusResponse:  # noqa: N802 - gRPC
        """Return the status that the test set."""
        return self.status

    def GetReplicas(self, request: Any, context: Any) -> api.GetReplicasResponse:  # noqa: N802 - gRPC
        """Return what the test set; by default as a server that does not know the call."""
        call = self.calls.get("GetReplicas", AdminServicer.GetReplicas)
        answer: api.GetReplicasResponse = call(self, request, context)
        return answer

    def GetDrain(self, request: Any, context: Any) -> api.GetDrainResponse:  # noqa: N802 - gRPC
        """As above."""
        call = self.calls.get("GetDrain", AdminServicer.GetDrain)
        answer: api.GetDrainResponse = call(self, request, context)
        return answer

    def GetModels(self, request: Any, context: Any) -> api.GetModelsResponse:  # noqa: N802 - gRPC
        """As above."""
        call = self.calls.get("GetModels", AdminServicer.GetModels)
        answer: api.GetModelsResponse = call(self, request, context)
        return answer

    def _model(self, request: Any, context: Any) -> api.ModelOperation:
        self.requests.append(request)
        call = self.calls[type(request).__name__.removesuffix("Request")]
        answer: api.ModelOperation = call(self, request, context)
        return answer

    LoadModel = UnloadModel = AbortModel = GetOperations = GetModelParity = _model

    def _canary(self, request: Any, _context: Any) -> api.CanaryRollouts:
        self.requests.append(request)
        return self.rollouts

    GetCanaries = StartCanary = ActOnCanary = _canary

    def GetTraffic(self, request: Any, context: Any) -> api.GetTrafficResponse:  # noqa: N802 - gRPC
        """As above."""
        call = self.calls.get("GetTraffic", AdminServicer.GetTraffic)
        answer: api.GetTrafficResponse = call(self, request, context)
        return answer

    def GetConfig(self, request: Any, context: Any) -> api.GetConfigResponse:  # noqa: N802 - gRPC
        """As above."""
        call = self.calls.get("GetConfig", AdminServicer.GetConfig)
        answer: api.GetConfigResponse = call(self, request, context)
        return answer

    def GetRequest(self, request: Any, _context: Any) -> api.GetRequestResponse:  # noqa: N802 - gRPC
        """Return what the pickers know of a request."""
        self.requests.append(request)
        return self.found

    def ListRevisions(  # noqa: N802 - gRPC
        self, request: Any, _context: Any
    ) -> api.ListRevisionsResponse:
        """Return one revision with five changes."""
        self.requests.append(request)
        one = api.Revision(
            number=7,
            at_unix_ms=1_700_000_000_000,
            author="ada",
            reason="more",
            changes=[f"change {number}" for number in range(5)],
        )
        return api.ListRevisionsResponse(revisions=[one])


@pytest.fixture
def admin() -> Iterator[FakeAdmin]:
    """Serve a fake admin API at ``admin.address``."""
    fake = FakeAdmin()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    add_AdminServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    fake.address = f"127.0.0.1:{port}"  # type: ignore[attr-defined]  # a test's shortcut
    yield fake
    server.stop(0).wait()


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Listen at an address, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        yield f"{host}:{port}"


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Run:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ran:
        """Run a command and return its exit code and output."""
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = self._capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run commands with captured output, 100 columns wide."""
    for name in ("TIDEGATE_SERVER", "TIDEGATE_TOKEN", "TIDEGATE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return Run(capsys)
