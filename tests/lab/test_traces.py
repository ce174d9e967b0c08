"""Traces and logs that a real Envoy exports, and what a picker knows of them."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from support.edge_stack import EdgeStack
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts

pytestmark = pytest.mark.timeout(180)

INFER = "/v2/models/toy-llm/generate"
METHODS = {
    "opentelemetry.proto.collector.trace.v1.TraceService": "spans",
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
}


class Collector:
    """An OTLP collector that keeps what it gets, as bytes."""

    def __init__(self) -> None:
        self.got: dict[str, list[bytes]] = {"spans": [], "logs": []}

    @contextlib.asynccontextmanager
    async def serve(self, address):
        """Serve gRPC at an address."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(
                    service, {"Export": grpc.unary_unary_rpc_method_handler(self._keeps(kind))}
                )
                for service, kind in METHODS.items()
            )
        )
        server.add_insecure_port(address)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    def _keeps(self, kind):
        async def export(request: bytes, _):
            self.got[kind].append(request)
            return b""

        return export

    async def has(self, kind, wanted: bytes) -> bool:
        """Whether a message of a kind contains these bytes."""
        return any(wanted in each for each in self.got[kind])


@pytest.fixture(scope="module")
async def traced(demo_extra):  # noqa: ARG001 - skips first
    """Run a stack whose Envoy traces all requests and logs them to the same collector."""
    with HeldPorts() as ports:
        address = ports.address()
        listener = {"tracing": {"otlp": address, "percent": 100}, "access_log": {"otlp": address}}
        async with Collector().serve(address) as collector, EdgeStack(listener=listener) as stack:
            yield stack, collector


async def ask(stack, **headers):
    """Send a request; return the `traceparent` that its replica got."""
    stack.forget()
    async with stack.http.post(
        f"http://{stack.listener}{INFER}",
        json={"text_input": "hello", "max_tokens": 1},
        headers=headers,
    ) as answer:
        assert answer.status == 200
    return next(
        value for name, value in stack.llm.headers[-1].items() if name.lower() == "traceparent"
    )


async def found(stack, trace_id):
    """Return what the pickers know of a trace."""
    answers = (await stack.ads.reports.find(trace_id)).told
    return [record for each in answers for record in each.records]


async def test_a_trace_that_envoy_begins_is_known_to_the_picker(traced):
    """Its call to the picker carries the trace; the request itself has none yet."""
    stack, collector = traced
    trace_id = (await ask(stack)).split("-")[1]

    async def known() -> bool:
        return bool(await found(stack, trace_id))

    assert await eventually(known)
    assert not await found(stack, trace_id[::-1])
    assert await eventually(lambda: collector.has("spans", bytes.fromhex(trace_id)))


async def test_a_trace_that_a_client_begins_goes_on(traced):
    """Envoy's span is of the client's trace, and so is what the picker knows."""
    stack, collector = traced
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    seen = await ask(stack, traceparent=f"00-{trace_id}-00f067aa0ba902b7-01")
    assert seen.split("-")[1] == trace_id

    async def known() -> bool:
        return bool(await found(stack, trace_id))

    assert await eventually(known)
    assert await eventually(lambda: collector.has("spans", bytes.fromhex(trace_id)))


async def test_a_collector_gets_the_log(traced):
    """An entry names its request."""
    stack, collector = traced
    await ask(stack, **{"x-request-id": "told-to-the-collector"})
    assert await eventually(lambda: collector.has("logs", b"told-to-the-collector"))
