"""The control server's gRPC services: ADS in both variants, the pickers' reports, and health.

Rules:

1. Each stream has one reader and one writer. The queue of outgoing messages is bounded by the
   protocol (one message per type until it is acknowledged) and, for a client that causes responses
   without reading them, by ``MAX_OUTBOX``: above it the client's requests are not read. A slow
   client delays only itself.
2. All state changes happen in ``Publisher``, on the event loop, without awaiting.
3. A message that violates the protocol ends its own stream with INVALID_ARGUMENT. What is not
   served is refused in one sentence (``unsupported``), and shown to operators (``refusals``).
4. However a stream ends, its client and its counts are removed.
5. Where a timer is noticed late this process did not run. The publisher's time then stands still
   until what clients sent meanwhile has been read, so that none of them is called late for it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from tidegate_api.names import ACCEPTED_METADATA
from tidegate_common.health import HealthService
from tidegate_common.upstream.awake import OVERSLEPT_S, READING_S
from xds_server.builds.adapted import Builds
from xds_server.builds.features import lacking
from xds_server.protocol import wire
from xds_server.protocol.messages import ProtocolError, short_type
from xds_server.protocol.publication import QUORUM
from xds_server.protocol.publisher import Publisher
from xds_server.protocol.stream import DeltaStream, SotwStream
from xds_server.server.connection import AdsConnection
from xds_server.server.drains import ModelDrainService
from xds_server.server.history import MarkedHistory
from xds_server.server.port import ENDING_S, FIRST_REQUEST_S, MAX_OUTBOX, MAX_STREAMS, AdsPort
from xds_server.server.refusals import RefusedPeers
from xds_server.server.reports import PickerReports
from xds_server.server.unsupported import ServedTypes, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidegate_common.tls.settings import Secured
    from xds_server.fleet.findings import Findings
    from xds_server.observability import XdsMetrics
    from xds_server.protocol.course import Sent
    from xds_server.protocol.messages import (
        ClientView,
        DeltaRequest,
        ResourceView,
        SotwRequest,
        XdsVariant,
    )
    from xds_server.protocol.publication import (
        Audience,
        OnReject,
        Plan,
        PublicationOutcome,
        PublicationRun,
    )
    from xds_server.protocol.snapshot import Snapshot
    from xds_server.settings import Serve

_STOPPING: Final = "the control server is stopping"
_ACCEPTED: Final = ((ACCEPTED_METADATA, "1"),)
_log = structlog.get_logger(__name__)


class AdsServer:
    """Serves published snapshots to Envoys and pickers; see the module's rules.

    Args:
        metrics: Metrics to update.
        serve: What Envoys are served.
        secured: Identity and roles; ``None`` = no TLS.
        history: Of what is served; ``None`` = without a mark.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        metrics: XdsMetrics,
        serve: Serve = "all",
        secured: Secured | None = None,
        history: MarkedHistory | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        publisher = self._publisher = Publisher()
        metrics.show_clients(publisher.quarantined, publisher.shared_nodes)
        self._connections: dict[int, AdsConnection] = {}
        self._numbers = itertools.count(1)
        self._epoch = f"{time.time_ns():x}"  # makes nonces differ from those of an earlier process
        found = lambda: self.on_findings()  # noqa: E731, PLW0108 - it is set after this
        self.refusals = RefusedPeers(clock)
        """Peers that are not served, or not all they ask for."""
        self._port = AdsPort(secured, self.refusals)
        self.reports = PickerReports(self._loads_changed, found, clock, self._port.not_named)
        self.drains = ModelDrainService()
        """Drains of models for gateways."""
        self.on_findings: Callable[[], None] = lambda: None
        """Called when the pickers' findings have changed."""
        self._running: list[Publication] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._stands_at: float | None = None
        """Where the publisher's time stands still until the next tick, monotonic seconds."""
        self._server: grpc.aio.Server | None = None
        self._builds = Builds()
        self._health = HealthService()
        self._served = ServedTypes(serve, self.refusals)
        self._history = history or MarkedHistory()
        self._address = ""
        self._closing = asyncio.Event()
        self._serving: set[asyncio.Task[Any]] = set()

    # --- life cycle -----------------------------------------------------------------------------

    async def start(self, address: str) -> str:
        """Listen on ``ip:port``; port 0 selects a free port.

        Returns:
            The address with the actual port.

        Raises:
            OSError: The address cannot be bound.
        """
        unsupported = Unsupported(lambda: self._address, self.refusals)
        self._server, self._address = self._port.open(
            address, self._handlers(), self.reports, self.drains, self._health, unsupported
        )
        self._set_health(serving=True)
        await self._server.start()
        _log.info("ads_listening", address=self._address)
        return self._address

    async def stop(self, grace: float = 1.0) -> None:
        """End every stream with UNAVAILABLE and stop, after at most ``grace`` seconds."""
        self._closing.set()
        self.reports.group.close()
        self._arm()  # nothing is due any more
        if self._server is not None:
            self._set_health(serving=False)
            await self._server.stop(grace)
            self._server = None
        if self._serving:
            # gRPC does not wait for the handlers; closing the loop before they end logs each one.
            await asyncio.wait(self._serving, timeout=ENDING_S)

    def _set_health(self, *, serving: bool) -> None:
        for service in ("", wire.ADS_SERVICE):
            self._health.set(service, serving=serving)

    # --- publishing -----------------------------------------------------------------------------

    def publish(
        self,
        plan: Plan,
        *,
        on_reject: OnReject = "rollback",
        quorum: float = QUORUM,
        waves: bool = False,
    ) -> Publication:
        """Start to publish the stages to all clients; a running publication is superseded.

        Args:
            plan: The stages, or a function that computes them. It is called once, immediately, when
                ``in_force`` is the state from which the stages start.
            on_reject: What refusals do, see ``Publisher.publish``.
            quorum: Share of refusals that ends the publication, with ``quorum``.
            waves: Stages come to Envoys in waves.

        Raises:
            ValueError: There are too many stages; nothing has changed.
        """
        run, sent = self._publisher.publish(
            self._served.plan(plan), self._now(), on_reject=on_reject, quorum=quorum, waves=waves
        )
        publication = Publication(run, self._outcome)
        self._running.append(publication)
        self._dispatch(sent)
        return publication

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return the newest snapshot for all of an audience; ``None`` = nothing was published."""
        return self._publisher.in_force(audience)

    @property
    def settled(self) -> bool:
        """No publication is running."""
        return self._publisher.settled

    def clients(self) -> tuple[ClientView, ...]:
        """Return all connected clients, sorted by node id and age."""
        now, publisher = self._now(), self._publisher
        known = ((c.node, n, c) for n, c in self._connections.items() if c.known)
        return tuple(
            client.view(now, publisher.quarantine(number), publisher.twins(number))
            for _, number, client in sorted(known, key=lambda each: each[:2])
        )

    def resources(self, number: int) -> Iterator[ResourceView]:
        """Yield the resources of a client, by the ``number`` of its view; none if it is gone."""
        connection = self._connections.get(number)
        return iter(()) if connection is None else connection.stream.resources()

    def in_flight(self) -> dict[str, int]:
        """Return endpoint id -> requests in flight, summed over the pickers that report."""
        return self.reports.in_flight()

    def findings(self) -> list[Findings]:
        """Return the findings of each group of pickers."""
        return self.reports.findings()

    def _outcome(self, run: PublicationRun) -> PublicationOutcome:
        return self._publisher.outcome(run, self._now())

    # --- after every change ---------------------------------------------------------------------

    def _dispatch(self, sent: Sent) -> None:
        for number, response in sent:
            connection = self._connections[number]
            connection.outbox.append(response)
            connection.filled.set()
            self._metrics.pushed(response.type_url)
        self._settle_publications()
        self._arm()

    def _settle_publications(self) -> None:
        for publication in (ended := [p for p in self._running if p.ended]):
            self._running.remove(publication)
            publication.end()
            outcome = publication.outcome
            elapsed_s = outcome.elapsed_s or 0.0
            self._metrics.published(outcome.state, elapsed_s)
            _log.info(
                "publication_ended",
                state=outcome.state,
                stage=outcome.stage,
                elapsed_ms=round(elapsed_s * 1000, 1),
                clients=outcome.clients,
                acked=outcome.acked,
                problems=len(outcome.problems),
            )
        if ended:
            for audience in ("envoy", "picker"):
                if (held := self._publisher.in_force(audience)) is not None:
                    for url in held.type_urls:
                        self._metrics.resources(audience, url, len(held.resources(url)))

    def _arm(self) -> None:
        if self._stands_at is not None:
            return
        at = None if self._closing.is_set() else self._publisher.wake_at
        if self._timer is not None:
            if at == self._timer_at:
                return  # as after most answers
            self._timer.cancel()
        self._timer, self._timer_at = None, at
        if at is not None:
            loop, delay = asyncio.get_running_loop(), max(0.0, at - self._clock())
            self._timer = loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        due, self._timer = self._timer_at, None
        if self._stands_at is None and due is not None and self._clock() - due > OVERSLEPT_S:
            # This process did not run: what clients have answered meanwhile is read first.
            self._stands_at = due - OVERSLEPT_S
            self._timer = asyncio.get_running_loop().call_later(READING_S, self._tick)
        else:
            self._stands_at = None
            self._dispatch(self._publisher.tick(self._clock()))

    def _now(self) -> float:
        return self._clock() if self._stands_at is None else self._stands_at

    # --- ADS ------------------------------------------------------------------------------------

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            wire.ADS_SERVICE,
            {
                "StreamAggregatedResources": grpc.stream_stream_rpc_method_handler(
                    self._serve_sotw, wire.parse_sotw, bytes
                ),
                "DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(
                    self._serve_delta, wire.parse_delta, bytes
                ),
            },
        )

    async def _serve_sotw(self, _: Any, context: Any) -> None:
        number = next(self._numbers)
        await self._serve(context, number, "sotw", SotwStream(f"{self._epoch}-{number}"))

    async def _serve_delta(self, _: Any, context: Any) -> None:
        number = next(self._numbers)
        await self._serve(context, number, "delta", DeltaStream(f"{self._epoch}-{number}"))

    async def _serve(
        self, context: Any, number: int, variant: XdsVariant, stream: SotwStream | DeltaStream
    ) -> None:
        if (serving := asyncio.current_task()) is not None:
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        if self._closing.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, _STOPPING)
        if len(self._connections) >= MAX_STREAMS:
            text = f"{MAX_STREAMS} streams are open already"
            self.refusals.note(context.peer(), "", text)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        port = self._port
        whom = port.roles(context), port.certificate(context)
        connection = AdsConnection(number, variant, context.peer(), self._clock(), stream, *whom)
        self._connections[number] = connection
        reader = asyncio.create_task(self._read(context, connection))
        tasks = (
            reader,
            asyncio.create_task(self._write(context, connection)),
            asyncio.create_task(self._closing.wait()),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._closing.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, _STOPPING)
            if reader.done():
                await self._end(context, connection, reader)
        finally:
            for task in tasks:
                task.cancel()
            self._forget(connection)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(
        self, context: Any, connection: AdsConnection, reader: asyncio.Task[None]
    ) -> None:
        try:
            reader.result()
        except ProtocolError as error:
            self.refusals.note(connection.peer, connection.node, str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no request within {FIRST_REQUEST_S:g} s"
            )

    async def _read(self, context: Any, connection: AdsConnection) -> None:
        async with asyncio.timeout(FIRST_REQUEST_S):
            request = await context.read()
        while request is not grpc.aio.EOF:
            if not connection.known:
                self._introduce(context, connection, wire.node_of(request))
            self._take(connection, self._understood(connection, request))
            if not connection.greeted.is_set():
                await context.send_initial_metadata(_ACCEPTED)
                connection.greeted.set()
            while len(connection.outbox) >= MAX_OUTBOX:
                connection.drained.clear()
                await connection.drained.wait()
            request = await context.read()

    def _understood(self, connection: AdsConnection, request: Any) -> SotwRequest | DeltaRequest:
        read = wire.read_sotw if connection.variant == "sotw" else wire.read_delta
        try:
            return read(request, self._history.mark)
        except wire.OtherHistoryError:
            raise self._history.refusal(connection.node, connection.peer) from None

    async def _write(self, context: Any, connection: AdsConnection) -> None:
        encode = wire.write_sotw if connection.variant == "sotw" else wire.write_delta
        await connection.greeted.wait()
        while True:
            await connection.filled.wait()
            connection.filled.clear()
            while connection.outbox:
                await context.write(encode(connection.outbox.popleft(), self._history.mark))
                connection.drained.set()

    def _introduce(self, context: Any, connection: AdsConnection, node: wire.XdsNode) -> None:
        connection.introduce(node, tuple(each.lost for each in lacking(node.build)))
        if node.kind == "picker" and (reason := self._port.not_named(context, node.id)):
            raise ProtocolError(reason)
        connection.stream.adapt = self._builds.adapter(node.build, node.pickers)
        connection.known = True
        self._publisher.connect(
            connection.number,
            node.id,
            connection.audience,
            connection.stream,
            self._clock(),
            build=node.release,
            group=node.group,
            cluster=node.cluster,
            reports=node.kind == "picker",
        )
        if (twins := self._publisher.twins(connection.number)) > 1:
            _log.warning("xds_node_shared", node=node.id, clients=twins, peer=connection.peer)
        self._metrics.stream_opened(connection.audience, connection.variant)
        _log.info(
            "xds_client_connected",
            node=node.id,
            audience=connection.audience,
            protocol=connection.variant,
            peer=connection.peer,
            build=connection.build,
            lost=len(connection.lost),
        )

    def _take(self, connection: AdsConnection, request: Any) -> None:
        if request.type_url not in connection.types:
            self._served.check(connection, request.type_url)
            connection.types.add(request.type_url)
        sent, verdict = self._publisher.request(connection.number, request, self._now())
        if verdict is not None and verdict.accepted:
            self._metrics.acked(verdict.type_url, verdict.waited_s)
        elif verdict is not None:
            self._metrics.nacked(verdict.type_url)
            _log.warning(
                "xds_nack",
                node=connection.node,
                type=short_type(verdict.type_url),
                message=verdict.message,
            )
        self._dispatch(sent)

    def _forget(self, connection: AdsConnection) -> None:
        del self._connections[connection.number]
        if connection.known:
            self._metrics.stream_closed(connection.audience, connection.variant)
            _log.info("xds_client_gone", node=connection.node)
            self._dispatch(self._publisher.disconnect(connection.number, self._now()))

    def _loads_changed(self) -> None:
        self._dispatch(self._publisher.loads(self.reports.loads(), self._now()))


class Publication:
    """Handle of a publication; returned by ``AdsServer.publish``."""

    def __init__(
        self, run: PublicationRun, outcome: Callable[[PublicationRun], PublicationOutcome]
    ) -> None:
        self._run = run
        self._outcome = outcome
        self._ended = asyncio.Event()

    @property
    def outcome(self) -> PublicationOutcome:
        """Outcome of the publication, current or final."""
        return self._outcome(self._run)

    @property
    def ended(self) -> bool:
        """The publication has ended; cheaper than ``outcome``."""
        return self._run.outcome is not None

    async def wait(self, timeout_s: float | None = None) -> PublicationOutcome:
        """Wait for the end; after ``timeout_s`` seconds return the current outcome ("waiting")."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            pass
        return self.outcome

    def end(self) -> None:
        """Wake the waiting callers; called once, when the run has its outcome."""
        self._ended.set()
