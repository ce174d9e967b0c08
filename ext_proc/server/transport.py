"""Selects the gRPC server implementation and gRPC's socket polling, before gRPC is loaded.

``grpc`` is ``grpc.aio``. ``nghttp2`` (the extra ``fast``) is libnghttp2 in the loop's own thread:
a third of the CPU per request, a seventh of the memory per open stream
(``docs/reports/attempts.md``).

gRPC's event engine reads each server connection in threads of its own and hands input to the
completion queue's thread, which wakes ours: two thread switches for each step of a stream. Its
older listener reads in the completion queue's thread: one switch less, and a sixth less CPU for a
bare picker (``bench/cost/bare_picker.py``).

Source: ``GRPC_EXPERIMENTS`` in gRPC's ``doc/environment_variables.md`` and
``src/core/lib/experiments/experiments.yaml``. A later release logs a name that it does not know
and ignores it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.settings import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from ext_proc.server.port import PortSecurity
    from ext_proc.settings import Transport

VARIABLE: Final = "GRPC_EXPERIMENTS"
LISTENER: Final = "-event_engine_listener"


def choose(environment: MutableMapping[str, str]) -> None:
    """Select the cheaper listener, unless the operator has set experiments already.

    Args:
        environment: The process environment, before gRPC is loaded; children inherit it.
    """
    environment.setdefault(VARIABLE, LISTENER)


def named(wanted: Transport) -> Transport:
    """Resolve a setting to ``grpc`` or ``nghttp2``.

    Raises:
        MissingExtraError: ``nghttp2`` is requested and not installed.
    """
    if wanted == "grpc":
        return wanted
    try:
        import ngh2  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        if wanted == "auto":
            return "grpc"
        raise MissingExtraError(
            f"--transport nghttp2 needs ngh2: pip install 'tidegate[fast]' ({error})"
        ) from error
    return "nghttp2"


def server(transport: Transport, *, limit: int, security: PortSecurity | None = None) -> Any:
    """Return a server that accepts gRPC's handlers.

    Args:
        transport: gRPC implementation.
        limit: Maximum bytes of a message; the server's ``set_limit`` changes it.
        security: Identity and roles of the port; ``None`` = no TLS.

    Raises:
        MissingExtraError: ``nghttp2`` is requested and not installed.
    """
    if named(transport) == "nghttp2":
        from ext_proc.server.h2.server import Http2Server  # noqa: PLC0415 - an extra

        return Http2Server(limit, security)
    from ext_proc.server.growing import GrowingServer  # noqa: PLC0415 - `choose` must run before

    return GrowingServer(limit, security)
