"""Connection of the command line to the control server's admin API."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from tidegate.cli.token import with_token
from tidegate.terminal.errors import UNFINISHED, UNREACHABLE, USAGE, CliError
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub
from tidegate_api.names import LEADER_METADATA
from tidegate_common.unix import foreign_folder, is_unix, path_of, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidegate.cli.options import ChangeFlags, ReadFlags
    from tidegate_common.tls.rpc import ClientTls

READ_TIMEOUT_S: Final = 5.0
"""Deadline of a read-only call, seconds."""
CHANGE_MARGIN_S: Final = 0.4
"""Added to ``--timeout``, seconds: a live server answers at the timeout, a dead one never does."""
CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # the admin port is local or inside the cluster
    ("grpc.max_receive_message_length", 64 * 2**20),
)

_NOT_CONNECTED: Final = ("failed to connect", "resolution failed")
"""What gRPC says of a call that was never sent."""
_NOT_TRUSTED: Final = ("CERTIFICATE_VERIFY_FAILED", "is not in peer certificate")
"""Words of gRPC where the server's certificate is refused."""
_OF_THE_LIBRARY: Final = {
    grpc.StatusCode.UNKNOWN: "the control server at {} failed at this call",
    grpc.StatusCode.CANCELLED: "the control server at {} broke this call off",
    grpc.StatusCode.DATA_LOSS: "the answer of the control server at {} cannot be read",
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        "the control server at {} has too much to do, or its answer is larger than 64 MiB"
    ),
}
"""What is said of statuses whose words are those of gRPC."""


def explain(error: grpc.Call, server: str, *, change: bool = False) -> CliError:
    """Return the error message for a failed call to ``server``.

    Args:
        error: The failed call.
        server: Address of the control server.
        change: The call asked for a change.
    """
    code, details = error.code(), error.details() or ""
    if any(words in details for words in _NOT_TRUSTED):
        return CliError(
            f"{server} has no certificate that --tls-ca trusts for that name; give its authority"
            " with --tls-ca, or its name with --tls-server-name",
            UNREACHABLE,
        )
    unsent = any(words in details.lower() for words in _NOT_CONNECTED)
    if code is grpc.StatusCode.UNAVAILABLE and (unsent or not change):
        remedy = (
            "this user may not open it, which its owner changes by `tidegate xds --admin-group`"
            if "Permission denied" in details
            else "start it with `tidegate xds --fleet FLEET`, or set --server (or TIDEGATE_SERVER)"
        )
        return CliError(f"cannot reach the control server at {server}; {remedy}", UNREACHABLE)
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
        silent = "is gone" if code is grpc.StatusCode.UNAVAILABLE else "did not answer in time"
        return _unanswered(f"the control server at {server} {silent}", change=change)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CliError(
            f"{server} does not answer as a Tidegate control server; set --server to its admin "
            "address (`tidegate xds --admin`), not to its ADS address"
        )
    said = details or f"the control server at {server} answered {code.name}"
    if code in _OF_THE_LIBRARY:
        said = f"{_OF_THE_LIBRARY[code].format(server)}: look at its log ({code.name})"
    return CliError(said)


def _unanswered(what: str, *, change: bool) -> CliError:
    if change:
        return CliError(
            f"{what}; the change may have been taken: look at `tidegate history` before you repeat"
            " it",
            UNFINISHED,
        )
    return CliError(
        f"{what}; it may be stopped or overloaded: look at its process and its log", UNREACHABLE
    )


@contextmanager
def admin(
    server: str, tls: ClientTls | None = None, *, change: bool = False
) -> Iterator[AdminStub]:
    """Connect to the control server and convert failed calls in the block to ``CliError``.

    A call to a server that follows another goes to the one that leads.

    Args:
        server: Its admin address: ``host:port``, ``unix:PATH`` or ``local``.
        tls: How to connect; ``None`` = without TLS.
        change: The calls in the block ask for changes.

    Raises:
        CliError: The server cannot be reached or refused the call.
    """
    server = _checked(server)
    try:
        with ExitStack() as stack:

            def reach(address: str) -> grpc.Channel:
                channel = stack.enter_context(_channel(address, tls))
                encrypted = tls is not None and not is_unix(address)
                return with_token(channel, address, encrypted=encrypted)

            to_leader = _ToLeader(lambda address: AdminStub(reach(address)))
            yield AdminStub(grpc.intercept_channel(reach(server), to_leader))
    except grpc.RpcError as error:
        # The error of a unary call is also a grpc.Call; the type stubs do not declare it.
        raise explain(cast("grpc.Call", error), server, change=change) from error


def ask(
    flags: ReadFlags | ChangeFlags, call: str, timeout_s: float = READ_TIMEOUT_S, **fields: Any
) -> Any:
    """Return the answer to one short call; errors as of ``admin``.

    Args:
        flags: Where the control server is.
        call: The call's name, such as ``GetStatus``.
        timeout_s: Seconds for the answer.
        fields: Of its request.
    """
    with admin(flags.server, flags.tls) as stub:
        return getattr(stub, call)(request_of(call, **fields), timeout=timeout_s)


def request_of(call: str, **fields: Any) -> Any:
    """Return the request of a call of the admin API."""
    return getattr(admin_pb2, f"{call}Request")(**fields)


def _checked(server: str) -> str:
    """Return the address that is called; one that another user could have made is refused."""
    if not is_unix(server):
        return server
    try:
        path = path_of(server)
    except ValueError as error:
        raise CliError(f"--server: {error}", USAGE) from error
    if (reason := foreign_folder(path)) is not None:
        raise CliError(reason, UNREACHABLE)
    return resolved(server)


def _channel(server: str, tls: ClientTls | None) -> grpc.Channel:
    if tls is None or is_unix(server):
        return grpc.insecure_channel(server, options=CHANNEL_OPTIONS)
    options = (*CHANNEL_OPTIONS, *tls.options())
    return grpc.secure_channel(server, tls.credentials(), options=options)


class _ToLeader(grpc.UnaryUnaryClientInterceptor):
    """Makes a call again, once, where the server says that another one leads.

    Args:
        reach: Returns the calls of a server.
    """

    def __init__(self, reach: Callable[[str], AdminStub]) -> None:
        self._reach = reach

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Make the call."""
        call = continuation(client_call_details, request)
        if call.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            return call
        leader = dict(call.trailing_metadata() or ()).get(LEADER_METADATA)
        if not isinstance(leader, str) or is_unix(leader):
            return call
        method = str(client_call_details.method).rpartition("/")[2]
        again = getattr(self._reach(leader), method)
        return again.future(request, timeout=client_call_details.timeout)
