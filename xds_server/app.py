"""Composition and life cycle of the control server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from tidegate_common import logs
from tidegate_common.tls.denied import DeniedPeers
from tidegate_common.tls.files import TlsError
from tidegate_common.tls.pages import serve_pages
from tidegate_common.tls.settings import secured as secured_by
from xds_server.admin.access.tokens import TokensError
from xds_server.admin.certificates import (
    Certificates,
    ServedCertificates,
    certificate_files,
)
from xds_server.admin.csds import ClientStatusService
from xds_server.admin.operators import OperatorPorts
from xds_server.admin.pages import pages
from xds_server.admin.service import AdminService
from xds_server.admin.status import StatusBoard, known_names
from xds_server.admin.status_log import StatusLog
from xds_server.admin.stopping import Stopping
from xds_server.applications.discovery.file import FileFault, FileWatch, read_text
from xds_server.applications.discovery.membership import Clocks, Membership
from xds_server.applications.discovery.readiness import Readiness
from xds_server.applications.discovery.sources.resolver import Resolver
from xds_server.applications.discovery.table import SourceTools
from xds_server.applications.keepers import standby_keeper
from xds_server.applications.keepers.canary_alerts import CanaryAlerts
from xds_server.applications.keepers.canary_arms import CanaryArms
from xds_server.applications.keepers.canary_keeper import CanaryKeeper
from xds_server.applications.keepers.health_broadcast import HealthBroadcaster
from xds_server.applications.keepers.placement_keeper import PlacementKeeper
from xds_server.applications.keepers.standby_keeper import StandbyKeeper
from xds_server.applications.keepers.unpicked_keeper import UnpickedKeeper
from xds_server.applications.loading.acting import ModelActions
from xds_server.applications.loading.keeper import LoadKeeper
from xds_server.applications.loading.leaving import LeavingModels
from xds_server.applications.loading.replicas import TritonCalls
from xds_server.applications.traffic.book import TrafficBook
from xds_server.control.fleet_control import Control
from xds_server.fleet.guards.last_replica import LastReplica
from xds_server.fleet.load import FleetError, load_text
from xds_server.fleet.members.members import Members
from xds_server.fleet.members.stored import dump, load
from xds_server.fleet.model.fields import split_host_port
from xds_server.fleet.store import RevisionStore, StoreError
from xds_server.leading.standing import standing
from xds_server.observability import XdsMetrics
from xds_server.server.history import MarkedHistory
from xds_server.server.service import AdsServer
from xds_server.snapshots.client_view import ClientSnapshots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tidegate_common.tls.settings import Secured
    from xds_server.fleet.members.members import Promoted
    from xds_server.settings import ControlSettings

EXIT_OK = 0
EXIT_CANNOT_START = 2
GRACE_S = 2.0
"""Seconds that running calls may take to end when the server stops."""

SWITCH_S = 0.001
"""Seconds after which a worker thread hands the interpreter to the event loop. Fleets are validated
in worker threads, and each step of an answer waits this long for the interpreter."""

YOUNG_PER_FULL = 1000
"""Collections of younger objects for each collection of all; Python's default is 10."""

MEMBERS_KEY = "members"
"""Key of the members in the store."""

CANARIES_KEY = "canaries"
"""Key in the store of the rollouts."""

COMPARE_S = 30.0
"""Seconds between two comparisons of the models of canaries' replicas."""

AGAIN_POLLS = 25
"""Polls, of 0.2 s, until a fleet file is tried again that would take the last usable replica."""

STANDBYS_KEY = "standbys"
"""Key in the store of the standbys that are in use."""

GROUP_KEY = "group"
"""Key of the list of pickers that place new sequences, in the store."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = structlog.get_logger(__name__)


async def run(settings: ControlSettings, stop: asyncio.Event | None = None) -> int:
    """Run the control server until SIGINT or SIGTERM, or until ``stop`` is set.

    Args:
        settings: Start options.
        stop: Ends the run when set. If given, no signal handlers are installed.

    Returns:
        The exit code: 0, or 2 if the server could not start (with one error on stderr).
    """
    logs.configure(settings.log_format, settings.log_level)
    sys.setswitchinterval(SWITCH_S)
    try:
        async with _running(settings, stop) as runs:
            if runs and stop is None:
                await _signalled()
            elif runs and stop is not None:
                await stop.wait()
    except (FileFault, FleetError, StoreError, TlsError, TokensError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the caller reads a start error on stderr
        return EXIT_CANNOT_START
    return EXIT_OK


async def _signalled() -> None:
    with _signals() as stopped:
        await stopped.wait()


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """Return what is set by a signal to stop."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _store(
    settings: ControlSettings, stop: asyncio.Event | None
) -> AsyncIterator[RevisionStore | None]:
    """Return the store once this server may write to it; ``None`` = it was stopped before.

    Raises:
        StoreError: The store cannot be used.
        OSError: An address cannot be bound.
    """
    if settings.store is None:
        with contextlib.closing(await asyncio.to_thread(RevisionStore, settings.state)) as store:
            yield store
        return
    async with contextlib.AsyncExitStack() as stack:
        secured = await asyncio.to_thread(secured_by, settings)
        if secured is not None:
            stack.push_async_callback(_ended, asyncio.create_task(secured.identity.follow()))
        with _signals() if stop is None else contextlib.nullcontext(stop) as stopped:
            leading = await stack.enter_async_context(standing(settings, secured, stopped))
        yield leading


@contextlib.asynccontextmanager
async def _running(
    settings: ControlSettings, stop: asyncio.Event | None = None
) -> AsyncIterator[bool]:
    """Start the server once it may lead; return False if it was stopped before.

    Raises:
        As ``_serving`` and ``_store``.
    """
    text = await asyncio.to_thread(_text, settings)  # an invalid one is told before all else
    async with _store(settings, stop) as store:
        if store is None:
            yield False
            return
        if settings.store is not None:  # it may have been edited since
            text = await asyncio.to_thread(_text, settings)
        async with _serving(settings, store, text):
            yield True


def _text(settings: ControlSettings) -> str:
    text = read_text(settings.fleet)
    load_text(text, str(settings.fleet))
    return text


@contextlib.asynccontextmanager
async def _serving(
    settings: ControlSettings, store: RevisionStore, text: str
) -> AsyncIterator[None]:
    """Start all parts in the order of their dependencies, and stop them in reverse order.

    Raises:
        FileFault: The fleet file cannot be read.
        FleetError: The file is not a valid fleet.
        StoreError: The store cannot be used.
        TlsError: The certificate's files cannot be used.
        TokensError: The token file cannot be used.
        OSError: An address cannot be bound.
    """
    source = str(settings.fleet)
    async with contextlib.AsyncExitStack() as stack:
        registry = CollectorRegistry()
        metrics = XdsMetrics(registry)
        secured = await _identity(settings, metrics, stack)
        refused = DeniedPeers()
        ads, history = await _ads(settings, store, metrics, secured)

        def in_force(revision: int) -> None:
            metrics.set_revision(revision)
            broadcaster.notify()
            membership.notify()
            traffic.fleet_changed()

        control = Control(
            store, ads, _unix_ms, time.monotonic, in_force, ads.reports.replicas.left_alone
        )
        traffic = TrafficBook(lambda: known_names(control), time.monotonic)
        ads.reports.traffic = traffic
        broadcaster = HealthBroadcaster(ads, control)
        ads.on_findings = broadcaster.notify
        metrics.show_published_sick(lambda: broadcaster.published)
        ads_address = await ads.start(settings.ads)
        stack.push_async_callback(ads.stop, GRACE_S)
        metrics_address = await stack.enter_async_context(
            serve_pages(
                pages(registry, _stopping(control, ads)),
                settings.metrics,
                secured,
                refused.note,
                settings.health_port,
            )
        )
        metrics.show_unwritten(lambda: len(control.journal.held), lambda: control.journal.fault)
        membership = await _membership(settings, store, control, ads, stack)
        metrics.show_membership(
            lambda: ((each.pool, each.counts) for each in membership.pools()),
            lambda: (
                (each.pool, each.source, each.endpoints is not None and not each.trouble)
                for each in membership.sources()
            ),
        )
        operators = await stack.enter_async_context(
            OperatorPorts(settings, secured, refused.note, GRACE_S)
        )
        served = ServedCertificates(
            lambda: control.fleet if control.revision else None, ads.clients
        )
        board = StatusBoard(
            control,
            ads,
            traffic,
            ads.reports.replicas,
            ads.reports.placements,
            membership,
            ads.reports.passed.recent,
            Certificates(
                secured,
                ads.clients,
                time.time,
                lambda: certificate_files(control.fleet) if control.revision else (),
                served,
            ).found,
            lambda: operators.trail.fault,
            ads.reports.relief,
            ads.reports.missing,
            lambda: history.reason,
        )
        metrics.show_verdict(board.judged)
        metrics.show_audit(lambda: operators.trail.unwritten)
        placed, leaving = _placement(control, ads)
        loads = await stack.enter_async_context(_loads(control, store, leaving))
        canaries, arms = await _canaries(stack, control, ads, store, loads, board)
        metrics.show_operations(loads.now)
        service = AdminService(
            control,
            ads,
            broadcaster.sick,
            ads.refusals.newest,
            ads.reports.passes,
            membership,
            board,
            ads.reports.find,
            _stopping(control, ads),
            loads,
            canaries,
        )
        # The admin ports are bound before anything is stored; they answer once there is a fleet.
        admin_address = operators.bind(service, ClientStatusService(ads))
        stack.push_async_callback(control.stop)
        known = await asyncio.to_thread(stored_members, store)
        await control.start(
            text,
            source,
            known,
            await asyncio.to_thread(stored_standbys, store),
            shared=settings.store is not None,
        )
        canaries.settle()
        await loads.start()
        http_address = await operators.start()
        for running in (
            membership.run(known),
            broadcaster.run(),
            _standby_keeper(control, ads, store).run(),
            placed.run(),
            UnpickedKeeper(control, ads.reports.replicas.merged).run(),
            canaries.run(),
            _compared(arms, canaries),
            StatusLog(board.verdict).run(),
            served.run(),
        ):
            stack.push_async_callback(_ended, asyncio.create_task(running))
        stack.push_async_callback(_watch(settings, text, control))
        _collect_rarely()
        _log.info(
            "control_server_ready",
            ads=ads_address,
            admin=admin_address,
            admin_http=http_address,
            metrics=metrics_address,
            serve=settings.serve,
            revision=control.revision,
            state=settings.kept_in,
        )
        yield
        _log.info("control_server_stopping")


async def _ads(
    settings: ControlSettings,
    store: RevisionStore,
    metrics: XdsMetrics,
    secured: Secured | None,
) -> tuple[AdsServer, MarkedHistory]:
    """Return the ADS server, and the history that it serves."""
    lasts = settings.store is not None or settings.state is not None
    history = await asyncio.to_thread(
        MarkedHistory.of, store, lasts=lasts, accept_loss=settings.accept_loss
    )
    ads = AdsServer(metrics, settings.serve, secured, history)
    ads.reports.group.restore(await asyncio.to_thread(store.value, GROUP_KEY))
    ads.reports.group.store = partial(store.put_value, GROUP_KEY)
    return ads, history


async def _identity(
    settings: ControlSettings, metrics: XdsMetrics, stack: contextlib.AsyncExitStack
) -> Secured | None:
    """Return the server's identity, whose files are followed; ``None`` = no TLS."""
    secured = await asyncio.to_thread(secured_by, settings)
    metrics.show_certificate(secured)
    if secured is not None:
        stack.push_async_callback(_ended, asyncio.create_task(secured.identity.follow()))
    return secured


async def _membership(
    settings: ControlSettings,
    store: RevisionStore,
    control: Control,
    ads: AdsServer,
    stack: contextlib.AsyncExitStack,
) -> Membership:
    """Return the membership of found replicas, which does not run yet."""

    async def keep(members: Members) -> None:
        try:
            await asyncio.to_thread(store.put_value, MEMBERS_KEY, dump(members))
        except StoreError as error:
            _log.warning("membership_not_stored", error=str(error))

    servers = [split_host_port(each) for each in settings.dns or ()]
    return Membership(
        control,
        SourceTools(Resolver(servers), random.random),
        Clocks(time.monotonic, _unix_ms),
        ads.in_flight,
        await stack.enter_async_context(Readiness()),
        keep,
    )


def stored_members(store: RevisionStore) -> Members:
    """Return the members that were stored last; none if they cannot be read."""
    try:
        text = store.value(MEMBERS_KEY)
        return Members() if text is None else load(text)
    except (StoreError, ValueError) as error:
        _log.warning("membership_not_recalled", error=str(error))
        return Members()


def stored_standbys(store: RevisionStore) -> Promoted:
    """Return the standbys that were in use last; none if they cannot be read."""
    try:
        text = store.value(STANDBYS_KEY)
        return {} if text is None else standby_keeper.load(text)
    except (StoreError, ValueError) as error:
        _log.warning("standbys_not_recalled", error=str(error))
        return {}


def _placement(control: Control, ads: AdsServer) -> tuple[PlacementKeeper, LeavingModels]:
    """Return what tells clients which replica has which model, and which models leave replicas."""
    placed = PlacementKeeper(
        control,
        ads.reports.placements,
        time.monotonic,
        lambda: leaving.places(),  # noqa: PLW0108 - it is made below
    )
    leaving = LeavingModels(
        control,
        ads.clients,
        ads.reports,
        lambda endpoint: _client_view(ads).leaving(endpoint),
        placed.look,
        time.monotonic,
    )
    ads.drains.leaving = leaving
    return placed, leaving


def _client_view(ads: AdsServer) -> ClientSnapshots:
    return ClientSnapshots(ads.in_force("picker"), ads.in_force("envoy"))


def _stopping(control: Control, ads: AdsServer) -> Stopping:
    return Stopping(control, ads, ads.reports, lambda: _client_view(ads))


def _standby_keeper(control: Control, ads: AdsServer, store: RevisionStore) -> StandbyKeeper:
    async def keep(text: str) -> None:
        try:
            await asyncio.to_thread(store.put_value, STANDBYS_KEY, text)
        except StoreError as error:
            _log.warning("standbys_not_stored", error=str(error))

    return StandbyKeeper(control, ads.reports.replicas.merged, keep, time.monotonic, _unix_ms)


async def _canaries(
    stack: contextlib.AsyncExitStack,
    control: Control,
    ads: AdsServer,
    store: RevisionStore,
    loads: LoadKeeper,
    board: StatusBoard,
) -> tuple[CanaryKeeper, CanaryArms]:
    """Return the keeper of rollouts, with what was stored, and what it knows of replicas."""
    arms = CanaryArms(control, ads.reports.replicas.merged, loads)
    alerts = await stack.enter_async_context(CanaryAlerts(control, time.monotonic))

    async def keep(text: str) -> None:
        await asyncio.to_thread(store.put_value, CANARIES_KEY, text)

    def per_s(pool: str) -> float | None:
        traffic = ads.reports.traffic
        names = (
            each.name for one in control.fleet.pools if one.name == pool for each in one.variants
        )
        return None if traffic is None else sum(traffic.variant(pool, n).per_second for n in names)

    made = CanaryKeeper(
        control,
        arms,
        keep,
        time.time,
        random.random,
        alerts,
        ads.reports.loads,
        per_s,
        arms.count,
        alerts.ask,
    )
    ads.reports.on_sessions = made.take
    try:
        text = await asyncio.to_thread(store.value, CANARIES_KEY)
        if text is not None:
            made.recall(text)
    except (StoreError, ValueError) as error:
        _log.warning("canaries_not_recalled", error=str(error))
    board.canaries = made.lines
    return made, arms


async def _compared(arms: CanaryArms, canaries: CanaryKeeper) -> None:
    """Compare the models of canaries' replicas until cancelled."""
    while True:
        await arms.compare(canaries.running)
        await asyncio.sleep(COMPARE_S)


@contextlib.asynccontextmanager
async def _loads(
    control: Control, store: RevisionStore, leaving: LeavingModels
) -> AsyncIterator[LoadKeeper]:
    async with TritonCalls() as calls:
        keeper = LoadKeeper(ModelActions(control, calls, leaving=leaving), store, _unix_ms)
        await keeper.recall()
        control.recall_leaving(leaving.marks())
        try:
            yield keeper
        finally:
            await keeper.stop()


def _watch(settings: ControlSettings, text: str, control: Control) -> Callable[[], Awaitable[None]]:
    """Start to watch the fleet file; return the function that stops the watch."""
    source = str(settings.fleet)

    async def taken(changed: str) -> None:
        known = control.file_error
        try:
            change = await control.apply_file(changed, source)
        except LastReplica as error:
            # What is usable changes: it may be taken later.
            watch.again(AGAIN_POLLS)
            if str(error) != known:
                _log.error("fleet_file_refused", error=str(error))
        except Exception as error:  # noqa: BLE001 - no file may end the server; see file_error
            _log.error("fleet_file_refused", error=str(error))
        else:
            _log.info("fleet_file_applied", revision=change.revision, changes=len(change.changes))

    def lost(fault: str) -> None:
        control.file_error = fault
        _log.error("fleet_file_unreadable", error=fault)

    watch = FileWatch(settings.fleet, taken, lost)
    watch.known(text)
    if control.file_error:
        watch.again(AGAIN_POLLS)
    task = asyncio.create_task(watch.run())

    async def end() -> None:
        await _ended(task)

    return end


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


def _collect_rarely() -> None:
    """Let a collection of all objects, which stops all threads, be rare and short.

    It takes 0.1 s with 7,000 replicas and finds next to nothing: what is alive now lives until the
    end, and fleets and resources have no cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], YOUNG_PER_FULL)
