"""The house keeps its shape: which module may import which, and what every test must say.

The imports are read from the source, so nothing is run.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ext_proc", "xds_server", "tidegate", "tidegate_common", "protos")

PURE = (
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
    "ext_proc.feedback.entries",
    "ext_proc.feedback.fold",
    "ext_proc.feedback.repository",
    "ext_proc.telemetry.orca",
    "ext_proc.control.pools",
    "ext_proc.observability.series",
    "ext_proc.server.stream",
    "ext_proc.workers.account",
    "ext_proc.workers.records",
    "ext_proc.workers.encode",
    "ext_proc.workers.decode",
    "ext_proc.workers.news",
    "ext_proc.workers.plan",
    "tidegate_common.backoff",
    "xds_server.fleet",
    "xds_server.resources",
    "xds_server.protocol",
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
    # (a module under this, may not import a module under that)
    ("ext_proc", "xds_server"),
    ("xds_server", "ext_proc"),
    ("ext_proc", "tidegate"),
    ("xds_server", "tidegate"),
    ("tidegate_common", "ext_proc"),
    ("tidegate_common", "xds_server"),
    ("tidegate_common", "tidegate"),
    ("tidegate_common", "protos"),
    ("protos", "ext_proc"),
    ("protos", "xds_server"),
    ("protos", "tidegate"),
    # The product never imports the laboratory: the command line loads it by name.
    ("ext_proc", "bench"),
    ("xds_server", "bench"),
    ("tidegate", "bench"),
    ("tidegate_api", "bench"),
    ("ext_proc.routing", "ext_proc.requests"),
    ("ext_proc.routing", "ext_proc.telemetry"),
    ("ext_proc.routing", "ext_proc.exchange"),
    ("ext_proc.routing", "ext_proc.feedback"),
    ("ext_proc.routing", "ext_proc.workers"),
    ("ext_proc.telemetry", "ext_proc.workers"),
    ("ext_proc.feedback", "ext_proc.workers"),
    ("ext_proc.feedback", "ext_proc.exchange"),
    ("ext_proc.requests", "ext_proc.workers"),
    ("ext_proc.exchange", "ext_proc.workers"),
    ("ext_proc.server.wire", "ext_proc.workers"),
    ("ext_proc.server.service", "ext_proc.workers"),
    ("ext_proc.workers", "ext_proc.requests"),
    ("ext_proc.workers", "ext_proc.exchange"),
    ("ext_proc.workers", "ext_proc.server.wire"),
    ("ext_proc.workers", "ext_proc.server.service"),
    ("ext_proc.workers.records", "ext_proc.workers.bus"),
    ("ext_proc.workers.encode", "ext_proc.workers.bus"),
    ("ext_proc.workers.decode", "ext_proc.workers.bus"),
    ("ext_proc.workers.links", "ext_proc.workers.bus"),
    ("ext_proc.workers.bus", "ext_proc.workers.parent"),
    ("ext_proc.requests", "ext_proc.exchange"),
    ("ext_proc.requests", "ext_proc.server.wire"),
    ("ext_proc.exchange", "ext_proc.server.wire"),
    ("ext_proc.exchange", "ext_proc.server.service"),
    ("ext_proc.server.wire", "ext_proc.server.service"),
    ("ext_proc.server.wire", "ext_proc.server.stream"),
    ("ext_proc.server.stream", "ext_proc.server.service"),
    ("ext_proc.server.stream", "ext_proc.workers"),
    ("ext_proc.server.h2", "ext_proc.server.stream"),
    ("ext_proc.server.h2", "ext_proc.server.service"),
    ("ext_proc.server.h2", "ext_proc.server.wire"),
    ("ext_proc.server.h2", "ext_proc.exchange"),
    ("ext_proc.server.h2", "ext_proc.routing"),
    ("ext_proc.telemetry.dialects", "ext_proc.telemetry.scrape"),
    ("xds_server.fleet", "xds_server.resources"),
    ("xds_server.fleet", "xds_server.protocol"),
    ("xds_server.fleet", "xds_server.admin"),
    ("xds_server.protocol", "xds_server.resources"),
    ("xds_server.protocol", "xds_server.fleet"),
    ("xds_server.protocol", "xds_server.server.service"),
    ("xds_server.resources", "xds_server.server.service"),
    ("xds_server.discovery", "xds_server.protocol"),
    ("xds_server.discovery", "xds_server.server.service"),
    ("xds_server.admin", "xds_server.protocol"),
    ("xds_server.admin", "xds_server.server.service"),
)

ONLY_IN = {
    # Envoy's ext_proc messages have one home, and so do its discovery messages.
    "envoy.service.ext_proc": ("ext_proc.server.wire", "ext_proc.server.service"),
    "envoy.service.accesslog": ("ext_proc.feedback.wire",),
    "envoy.service.discovery": ("xds_server.protocol.wire", "ext_proc.control.fleet_client"),
    # An extra: nothing else may load it.
    "opentelemetry": (
        "ext_proc.observability.tracing",
        "ext_proc.observability.otlp",
        "ext_proc.server.stream",
    ),
    "ngh2": ("ext_proc.server.h2", "ext_proc.server.transport"),
    "zmq": ("ext_proc.telemetry.kv_events",),
    "tritonclient": ("tidegate.demo", "tidegate.stack"),
    "envoy_data_plane": ("xds_server.resources",),
}


def _under(module: str, parent: str) -> bool:
    return module == parent or module.startswith(parent + ".")


def _modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(path: Path) -> set[str]:
    """Return what a file imports; `from a import b` counts as `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


IMPORTS = {module: _imports(path) for module, path in MODULES.items()}


def test_arrows_point_inward() -> None:
    """No module imports one that lies further out."""
    wrong = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        for inner, outer in FORBIDDEN
        if _under(module, inner)
        for name in sorted(names)
        if _under(name, outer)
    ]
    assert not wrong


def test_the_engine_stands_alone() -> None:
    """Triton imports the toy model's package by itself: it needs nothing else of the project."""
    folder = ROOT / "models" / "toy-llm"
    foreign = {
        name.split(".")[0]
        for path in sorted((folder / "toyllm").glob("*.py"))
        for name in _imports(path)
    } - set(sys.stdlib_module_names)
    assert foreign == {"toyllm", "numpy", "triton_python_backend_utils"}


def test_one_module_of_the_laboratory_names_the_engine_s_package() -> None:
    """It is on no import path: ``bench.engine`` finds it for all others."""
    naming = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "bench").rglob("*.py"))
        if any(_under(name, "toyllm") for name in _imports(path))
    ]
    assert naming == ["bench/engine.py"]


def test_pure_modules_do_no_io() -> None:
    """Pure modules import neither clocks, nor randomness, nor anything that waits."""
    wrong = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
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
        for module, names in IMPORTS.items()
        if any(_under(name, vocabulary) for name in names)
        and not any(_under(module, home) for home in ONLY_IN[vocabulary])
    ]
    assert not wrong


def test_relative_imports_are_not_used() -> None:
    """Imports are absolute, so that this file can read them."""
    wrong = [
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not wrong


def test_envoy_folder_is_no_package() -> None:
    """A package named envoy would shadow Envoy's generated messages."""
    assert not (ROOT / "envoy" / "__init__.py").exists()


def test_every_test_says_what_it_holds() -> None:
    """Each test function has a docstring."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert not wrong


def test_the_project_stands_alone() -> None:
    """No file names a path of somebody's machine."""
    needles = ("/" + "work/", "/" + "root/", "/" + "home/")
    wrong = [
        f"{path.relative_to(ROOT)}: {needle}"
        for folder in (*PACKAGES, "tests", "docs", "models", "envoy", "bench", "deploy")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".pbtxt", ".toml", ".proto"}
        for needle in needles
        if needle in path.read_text()
    ]
    assert not wrong
