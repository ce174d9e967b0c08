"""Connection of the command line to the control server's admin API."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import grpc

from tidegate.terminal.errors import CliError
from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_TIMEOUT_S: Final = 5.0
"""Deadline of a read-only call, seconds."""
CHANGE_MARGIN_S: Final = 10.0
"""Added to ``--timeout``, seconds: a live server answers at the timeout, a dead one never does."""
CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # the admin port is local or inside the cluster
    ("grpc.max_receive_message_length", 64 * 2**20),
)

_UNREACHABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def explain(error: grpc.Call, server: str) -> CliError:
    """Return the error message for a failed call to ``server``."""
    code, details = error.code(), error.details() or ""
    if code in _UNREACHABLE:
        return CliError(
            f"cannot reach the control server at {server}; start it with "
            "`tidegate xds --fleet FLEET`, or set --server (or TIDEGATE_SERVER)"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CliError(
            f"{server} does not answer as a Tidegate control server; set --server to its admin "
            "address (`tidegate xds --admin`), not to its ADS address"
        )
    if code is grpc.StatusCode.ABORTED:
        return CliError(f"{details}; look at `tidegate history` and try again")
    return CliError(details or f"the control server at {server} answered {code.name}")


@contextmanager
def admin(server: str) -> Iterator[AdminStub]:
    """Connect to the control server and convert failed calls in the block to ``CliError``.

    Raises:
        CliError: The server cannot be reached or refused the call.
    """
    try:
        with grpc.insecure_channel(server, options=CHANNEL_OPTIONS) as channel:
            yield AdminStub(channel)
    except grpc.RpcError as error:
        # The error of a unary call is also a grpc.Call; the type stubs do not declare it.
        raise explain(cast("grpc.Call", error), server) from error
