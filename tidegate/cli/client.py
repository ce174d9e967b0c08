"""The command line's connection to the control server's admin API."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import grpc

from tidegate.terminal.errors import CliError
from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_TIMEOUT_S: Final = 5.0
"""Bound of a call that only reads."""
CHANGE_MARGIN_S: Final = 10.0
"""Added to ``--timeout``: the server itself answers at the timeout, this bounds a dead one."""
CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # the admin port is local or inside the cluster
    ("grpc.max_receive_message_length", 64 * 2**20),
)

_UNREACHABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def explain(error: grpc.Call, server: str) -> CliError:
    """Turn a failed call into the sentence that the user reads."""
    code, details = error.code(), error.details() or ""
    if code in _UNREACHABLE:
        return CliError(
            f"cannot reach the control server at {server}; start it with "
            "`tidegate xds --fleet FLEET`, or set --server (or TIDEGATE_SERVER)"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CliError(
            f"{server} does not answer as a Tidegate control server; --server wants its admin "
            "address (`tidegate xds --admin`), not the one of ADS"
        )
    if code is grpc.StatusCode.ABORTED:
        return CliError(f"{details}; look at `tidegate history` and try again")
    return CliError(details or f"the control server at {server} answered {code.name}")


@contextmanager
def admin(server: str) -> Iterator[AdminStub]:
    """Connect to the control server; failed calls inside become ``CliError``.

    Raises:
        CliError: the server cannot be reached or refused the call.
    """
    try:
        with grpc.insecure_channel(server, options=CHANNEL_OPTIONS) as channel:
            yield AdminStub(channel)
    except grpc.RpcError as error:
        # Every error of a unary call is its Call too, which the type stubs do not say.
        raise explain(cast("grpc.Call", error), server) from error
