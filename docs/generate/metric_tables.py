"""Tables of the metrics, from the collectors that the two services register."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from pages import code, table
from prometheus_client import CollectorRegistry

from ext_proc.app import Picker
from ext_proc.settings import PickerSettings
from gateway.asking import Asker
from gateway.changes import ModelDrains, ReplicaChanges
from gateway.grpc_answers import GrpcAnswers
from gateway.http_answers import HttpAnswers
from gateway.metrics import GatewayMetrics
from gateway.ports import GatewayCalls
from gateway.questions import Questions
from gateway.streams.watches import StreamAnswers
from xds_server.observability import XdsMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

_TITLES: Final = ("metric", "type", "labels", "meaning")


def tables() -> dict[str, str]:
    """Return the table of each service's metrics."""
    control = CollectorRegistry()
    XdsMetrics(control)
    picker, gateway = asyncio.run(_picker()), asyncio.run(_gateway())
    return {
        "picker": table(_TITLES, _rows(picker)),
        "gateway": table(_TITLES, _rows(gateway)),
        "control server": table(_TITLES, _rows(control)),
    }


async def _picker() -> CollectorRegistry:
    return Picker(PickerSettings())._metrics.registry  # noqa: SLF001 - as its page prints it


async def _gateway() -> CollectorRegistry:
    asker = Asker()
    questions = Questions(asker, 50.0, time.monotonic)
    calls = GatewayCalls(
        HttpAnswers(questions),
        GrpcAnswers(questions),
        ReplicaChanges(questions, ModelDrains(None)),
        StreamAnswers(questions, 1.0),
        timeout_s=1.0,
        change_timeout_s=1.0,
    )
    calls.answered["http", "ok"] = 1  # so that its labels are known
    return GatewayMetrics(calls, questions, asker).registry


def _rows(registry: CollectorRegistry) -> Iterator[tuple[str, str, str, str]]:
    found = {}
    for collector in registry._collector_to_names:  # noqa: SLF001 - labels are told nowhere else
        for family in collector.collect():
            labels = getattr(family, "_labelnames", getattr(collector, "_labelnames", ()))
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (
                code(name),
                family.type,
                ", ".join(map(code, labels)) or "-",
                family.documentation,
            )
    yield from (found[name] for name in sorted(found))
