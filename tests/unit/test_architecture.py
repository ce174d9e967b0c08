"""The architecture: which module may import which.

Imports are read from the source, typing-only ones included; nothing is run. Where a test fails, its
assertion lists the modules: move the code to the layer that needs it, or pass it as an argument.
"""

from __future__ import annotations

import ast
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.modules import MODULES, PRODUCT

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (
        ("tidegate_api", "tidegate_common", "tools"),
        ("ext_proc", "xds_server"),
        ("gateway",),
        ("tidegate",),
        ("bench",),
    ),
    "ext_proc": (
        ("routing.values",),
        ("blame", "canary"),
        ("routing", "settings", "compiled"),
        ("requests",),
        ("exchange",),
        ("observability",),
        ("feedback", "telemetry", "server", "packages"),
        ("control", "workers"),
        ("probing",),
        ("app",),
        ("run",),
    ),
    "ext_proc.routing": (
        ("values",),
        ("latency",),
        ("state", "holdings"),
        ("cache", "health", "learning", "limits", "relief", "scales", "suspicion"),
        ("policies",),
        ("pipeline",),
        ("registry", "learner", "peers", "queue"),
        ("explain",),
        ("router",),
    ),
    "gateway": (
        ("callers", "merge", "settings"),
        ("targets",),
        ("asking",),
        ("questions",),
        ("http_answers",),
        ("grpc_answers",),
        ("changes", "streams"),
        ("ports",),
        ("metrics",),
        ("app",),
    ),
    "xds_server": (
        ("fleet", "protocol", "observability"),
        ("resources", "builds", "settings"),
        ("snapshots",),
        ("control",),
        ("applications.traffic",),
        ("server", "applications"),
        ("admin",),
        ("leading",),
        ("app",),
    ),
    "tidegate": (
        ("terminal", "stack", "stops", "reporter", "picker"),
        ("demo", "doctor"),
        ("cli",),
    ),
}
"""Within a package: a module may import from its own group and from lower layers (earlier rows);
groups of one row do not import each other. A package's ``__main__`` is above all. A name with a
point is a part of a part that has a layer of its own."""

PURE = (
    "ext_proc.blame",
    "ext_proc.canary",
    "ext_proc.routing",
    "ext_proc.requests",
    "ext_proc.telemetry.dialects",
    "ext_proc.telemetry.board",
    "ext_proc.telemetry.pacing",
    "ext_proc.telemetry.news",
    "ext_proc.telemetry.rates",
    "ext_proc.telemetry.kv_events.decode",
    "ext_proc.telemetry.kv_events.events",
    "ext_proc.telemetry.kv_events.follower",
    "ext_proc.telemetry.kv_events.sequence",
    "ext_proc.telemetry.kv_events.translate",
    "ext_proc.exchange",
    "ext_proc.feedback.canary_ends",
    "ext_proc.feedback.entries",
    "ext_proc.feedback.fold",
    "ext_proc.feedback.placement.index",
    "ext_proc.feedback.placement.pace",
    "ext_proc.telemetry.orca",
    "ext_proc.control.fields",
    "ext_proc.control.pools",
    "ext_proc.observability.records",
    "ext_proc.observability.traffic",
    "ext_proc.server.described",
    "ext_proc.server.stream",
    "ext_proc.workers.account",
    "ext_proc.workers.group.clock",
    "ext_proc.workers.group.owners",
    "ext_proc.workers.group.pages",
    "ext_proc.workers.records",
    "ext_proc.workers.encode",
    "ext_proc.workers.decode",
    "ext_proc.workers.messages",
    "ext_proc.workers.news",
    "ext_proc.workers.plan",
    "gateway.callers",
    "gateway.merge",
    "gateway.streams.reflection",
    "gateway.targets",
    "tidegate_common.backoff",
    "tidegate_common.canary",
    "tidegate_common.fine_histogram",
    "tidegate_common.histogram",
    "tidegate_common.lost",
    "tidegate_common.parity",
    "xds_server.applications.canary",
    "xds_server.builds",
    "xds_server.applications.discovery.admission",
    "xds_server.applications.discovery.replica",
    "xds_server.applications.discovery.kubernetes.answers",
    "xds_server.applications.discovery.kubernetes.mirror",
    "xds_server.applications.discovery.kubernetes.pods",
    "xds_server.applications.discovery.kubernetes.slices",
    "xds_server.applications.discovery.values",
    "xds_server.fleet",
    "xds_server.applications.loading.machine",
    "xds_server.applications.loading.operation",
    "xds_server.applications.loading.overview",
    "xds_server.applications.loading.parity",
    "xds_server.applications.loading.plan",
    "xds_server.resources",
    "xds_server.snapshots",
    "xds_server.protocol",
    "xds_server.server.group_list",
    "xds_server.applications.traffic",
)
"""Time, randomness, ids and I/O are arguments in these."""

IMPURE_EXCEPTIONS = ("xds_server.fleet.store",)
IMPURE = {
    "asyncio",
    "time",
    "random",
    "logging",
    "structlog",
    "grpc",
    "socket",
    "aiohttp",
    "uuid",
    "zmq",
}

FORBIDDEN = (
    # (a module under this, may not import a module under that): rules finer than the layers
    ("ext_proc.workers", "ext_proc.requests"),
    ("ext_proc.workers", "ext_proc.exchange"),
    ("ext_proc.workers", "ext_proc.server"),
    ("ext_proc.feedback", "ext_proc.exchange"),
    ("ext_proc.workers.records", "ext_proc.workers.bus"),
    ("ext_proc.workers.encode", "ext_proc.workers.bus"),
    ("ext_proc.workers.messages", "ext_proc.workers.bus"),
    ("ext_proc.workers.decode", "ext_proc.workers.bus"),
    ("ext_proc.workers.links", "ext_proc.workers.bus"),
    ("ext_proc.workers.bus", "ext_proc.workers.parent"),
    ("ext_proc.workers.bus", "ext_proc.routing.router"),
    ("ext_proc.telemetry", "ext_proc.routing.router"),
    ("ext_proc.server.wire", "ext_proc.server.service"),
    ("ext_proc.server.wire", "ext_proc.server.stream"),
    ("ext_proc.server.stream", "ext_proc.server.service"),
    ("ext_proc.server.h2", "ext_proc.server.stream"),
    ("ext_proc.server.h2", "ext_proc.server.service"),
    ("ext_proc.server.h2", "ext_proc.server.wire"),
    ("ext_proc.server.h2", "ext_proc.exchange"),
    ("ext_proc.server.h2", "ext_proc.routing"),
    ("ext_proc.telemetry.dialects", "ext_proc.telemetry.scrape"),
    ("xds_server.fleet.model", "xds_server.fleet.store"),
    # The admin API shows the protocol's values (messages, publication), not its machines.
    ("xds_server.admin", "xds_server.protocol.client"),
    ("xds_server.admin", "xds_server.protocol.course"),
    ("xds_server.admin", "xds_server.protocol.snapshot"),
    ("xds_server.admin", "xds_server.protocol.stream"),
    ("xds_server.admin", "xds_server.protocol.tracker"),
    ("xds_server.admin", "xds_server.protocol.publisher"),
    ("xds_server.admin", "xds_server.protocol.wire"),
    ("xds_server.admin", "xds_server.server"),
    ("tidegate_common", "tidegate_api"),
)

ONLY_IN = {
    # Envoy's ext_proc messages have one home, and so do its discovery messages.
    "envoy.service.ext_proc": ("ext_proc.server.wire", "ext_proc.server.service"),
    "envoy.service.accesslog": ("ext_proc.feedback.wire",),
    "envoy.service.discovery": ("xds_server.protocol.wire", "ext_proc.control.fleet_client"),
    # Extras: no other module may load them.
    "opentelemetry": (
        "ext_proc.observability.tracing",
        "ext_proc.observability.otlp",
        "ext_proc.server.described",
        "ext_proc.server.stream",
    ),
    "ngh2": ("ext_proc.server.h2", "ext_proc.server.transport"),
    "zmq": ("ext_proc.telemetry.kv_events",),
    "tritonclient": ("tidegate.demo", "tidegate.stack", "tidegate_api.generate"),
    "envoy_data_plane": ("xds_server.resources",),
    "dns": ("xds_server.applications.discovery.sources.resolver",),
}
"""A foreign vocabulary, and the product's modules that may name it."""


def _under(module: str, parent: str) -> bool:
    return module == parent or module.startswith(parent + ".")


def _imports(path: Path) -> set[str]:
    """Return what a file imports; `from a import b` counts as `a` and `a.b`, `from .a` as `.`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            names.add(".")
    return names


@cache
def _all_imports() -> dict[str, set[str]]:
    """Return the imports of each module, read once and not where tests are only collected."""
    return {module: _imports(path) for module, path in MODULES.items()}


def _group(module: str, package: str) -> str | None:
    """Return the part of a package that a module is in, ``None`` for others and ``__main__``."""
    if package and not module.startswith(package + "."):
        return None
    rest = module.removeprefix(package).lstrip(".").split(".")
    inner = ".".join(rest[:2])
    if any(inner in row for row in LAYERS[package]):
        return inner
    return None if not rest[0] or "__main__" in rest else rest[0]


@pytest.mark.parametrize("package", LAYERS, ids=lambda name: name or "packages")
def test_imports_point_to_lower_layers(package: str) -> None:
    """A module imports its own group and lower layers only."""
    layer = {name: level for level, row in enumerate(LAYERS[package]) for name in row}
    wrong = [
        f"{module} imports {name}"
        for module, names in _all_imports().items()
        if (own := _group(module, package)) is not None
        for name in sorted(names)
        if (other := _group(name, package)) in layer
        and other != own
        and layer[other] >= layer.get(own, len(layer))
    ]
    assert not wrong


@pytest.mark.parametrize("package", LAYERS, ids=lambda name: name or "packages")
def test_each_part_of_a_package_has_a_layer(package: str) -> None:
    """A new folder or module of these packages is given its layer here."""
    listed = {name for row in LAYERS[package] for name in row}
    found = {group for module in MODULES if (group := _group(module, package)) is not None}
    assert found == listed


def _with_packages(module: str) -> Iterator[str]:
    """Yield a module and the packages in which it is: Python imports these first."""
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def test_no_module_imports_itself_through_others() -> None:
    """There is no cycle of imports, typing-only ones and those of packages included."""
    graph = {
        module: {
            name
            for imported in names
            for name in _with_packages(imported)
            if name in MODULES and name != module
        }
        for module, names in _all_imports().items()
    }
    open_, closed = [], set()

    def walk(module: str) -> list[str] | None:
        if module in open_:
            return [*open_[open_.index(module) :], module]
        if module in closed:
            return None
        open_.append(module)
        for name in sorted(graph[module]):
            # A package imports its modules where it re-exports them; they may name the package.
            if not _under(module, name) and (cycle := walk(name)) is not None:
                return cycle
        closed.add(open_.pop())
        return None

    cycles = [cycle for module in graph if (cycle := walk(module)) is not None]
    assert not [" -> ".join(cycle) for cycle in cycles]


def test_forbidden_imports() -> None:
    """The finer rules hold, and each names modules that exist."""
    wrong = [
        f"{module} imports {name}"
        for module, names in _all_imports().items()
        for inner, outer in FORBIDDEN
        if _under(module, inner)
        for name in sorted(names)
        if _under(name, outer)
    ]
    assert not wrong
    named = {name for pair in FORBIDDEN for name in pair} | {*PURE, *IMPURE_EXCEPTIONS}
    assert not sorted(named - set(MODULES))


def test_pure_modules_do_no_io() -> None:
    """Pure modules import neither clocks, nor randomness, nor anything that waits."""
    wrong = [
        f"{module} imports {name}"
        for module, names in _all_imports().items()
        if any(_under(module, pure) for pure in PURE)
        and not any(_under(module, exception) for exception in IMPURE_EXCEPTIONS)
        for name in sorted(names)
        if name.split(".")[0] in IMPURE
    ]
    assert not wrong


@pytest.mark.parametrize("vocabulary", ONLY_IN)
def test_each_foreign_vocabulary_has_one_home(vocabulary: str) -> None:
    """A foreign project's messages are named only in the modules that wrap them."""
    wrong = [
        module
        for module, names in _all_imports().items()
        if module.split(".")[0] in PRODUCT
        and any(_under(name, vocabulary) for name in names)
        and not any(_under(module, home) for home in ONLY_IN[vocabulary])
    ]
    assert not wrong


def test_relative_imports_are_not_used() -> None:
    """Imports are absolute, so that this file can read them."""
    assert not [module for module, names in _all_imports().items() if "." in names]


def test_layers_name_each_package_once() -> None:
    """No name stands in two layers of a package."""
    for rows in LAYERS.values():
        for lower, upper in pairwise(rows):
            assert not set(lower) & set(upper)
