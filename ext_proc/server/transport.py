"""Over what the picker serves gRPC, and how gRPC reads its sockets: chosen before it is loaded.

``grpc`` is ``grpc.aio``. ``nghttp2`` (the extra ``fast``) is libnghttp2 in the loop's own thread:
a third of the CPU of a request, a seventh of an open stream's memory
(``docs/reports/attempts.md``).

gRPC's event engine reads each server connection in threads of its own and hands what came to the
completion queue's thread, which wakes ours: two changes of thread for each step of a stream. Its
older listener lets the completion queue's thread read: one change less, and a sixth of the CPU of
a bare picker (``bench/cost/bare_picker.py``).

Source: ``GRPC_EXPERIMENTS`` in gRPC's ``doc/environment_variables.md`` and
``src/core/lib/experiments/experiments.yaml``. A name that a later release does not know is logged
by it and changes nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ext_proc.settings import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from ext_proc.settings import Transport

VARIABLE: Final = "GRPC_EXPERIMENTS"
LISTENER: Final = "-event_engine_listener"


def choose(environment: MutableMapping[str, str]) -> None:
    """Name the cheaper listener, unless the operator has named experiments already.

    Args:
        environment: The process's, before gRPC begins; children inherit it.
    """
    environment.setdefault(VARIABLE, LISTENER)


def named(wanted: Transport) -> Transport:
    """Return ``grpc`` or ``nghttp2``: which of them is meant here.

    Raises:
        MissingExtraError: ``nghttp2`` is asked for and not installed.
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


def server(transport: Transport, *, limit: int, options: Any) -> Any:
    """Return a server that takes gRPC's handlers.

    Args:
        transport: Which.
        limit: Most bytes of a message.
        options: Those of ``grpc.aio``'s; the other has its own bounds.

    Raises:
        MissingExtraError: See ``named``.
    """
    if named(transport) == "nghttp2":
        from ext_proc.server.h2.server import Http2Server  # noqa: PLC0415 - an extra

        return Http2Server(limit)
    import grpc  # noqa: PLC0415 - loaded late, see above

    return grpc.aio.server(options=options)
