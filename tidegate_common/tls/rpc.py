"""Ports of ``grpc.aio`` servers: TLS that follows an identity, and calls that need roles.

Rules:

1. Each handshake uses what is in force of the files at that moment.
2. A call without a role that its method needs ends with PERMISSION_DENIED before its handler runs.
3. A connection has a maximum age, so that a certificate that was withdrawn does not serve for ever:
   then its peer is told to connect anew, and calls that outlive the grace are cut.
4. Without TLS nothing is checked.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from tidegate_common.tls.files import Identity
from tidegate_common.tls.pem import validity
from tidegate_common.tls.roles import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tidegate_common.tls.contexts import ClientCheck
    from tidegate_common.tls.files import Material, TlsFiles
    from tidegate_common.tls.pem import Validity
    from tidegate_common.tls.roles import CallPolicy
    from tidegate_common.tls.settings import Secured

    OnRefused = Callable[[str, Peer, str], None]

MAX_KNOWN_METHODS: Final = 1024
_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_MS: Final = 1000


def credentials(identity: Identity, check: ClientCheck) -> grpc.ServerCredentials:
    """Return a server's credentials, which follow the files.

    gRPC asks either for a client's certificate and demands it, or for none: with ``optional`` its
    peers have no names.
    """
    given = identity.material

    def fetched() -> Any:
        nonlocal given
        if given is identity.material:
            return None
        given = identity.material
        return _configuration(given)

    made: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
        _configuration(given), fetched, require_client_authentication=check == "required"
    )
    return made


def age_options(most_s: float, grace_s: float) -> tuple[tuple[str, int], ...]:
    """Return the options of a server whose connections have a maximum age, both in seconds."""
    return (
        ("grpc.max_connection_age_ms", round(most_s * _MS)),
        ("grpc.max_connection_age_grace_ms", round(grace_s * _MS)),
    )


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client connects: its identity, and the server that it expects."""

    identity: Identity
    server_name: str = ""
    """Name in the server's certificate; empty = the host of its address."""

    @classmethod
    def of(cls, files: TlsFiles, server_name: str = "") -> Self:
        """Return how to connect with the certificate of these files.

        Raises:
            TlsError: The files cannot be used.
        """
        return cls(Identity(files), server_name)

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of what is in force of the files."""
        held = self.identity.material
        return grpc.ssl_channel_credentials(held.ca, held.key, held.certificate)

    def options(self) -> tuple[tuple[str, str], ...]:
        """Return the options of a channel, besides those of its user."""
        name = self.server_name
        return (("grpc.ssl_target_name_override", name),) if name else ()


def peer_of(context: Any) -> Peer:
    """Return the peer of a call."""
    found = context.auth_context()
    return Peer(
        tuple(each.decode(errors="replace") for each in found.get("peer_uri", ())),
        tuple(each.decode(errors="replace") for each in found.get("peer_dns", ())),
    )


def validity_of(context: Any) -> Validity | None:
    """Return when the certificate of a call's peer holds; ``None`` = it has none, or not known."""
    for each in context.auth_context().get("x509_pem_cert", ()):
        try:
            return validity(each)
        except ValueError:
            return None
    return None


def client_tls(secured: Secured | None, server_name: str) -> ClientTls | None:
    """Return how a service connects to another; ``None`` = without TLS."""
    return None if secured is None else ClientTls(secured.identity, server_name)


def add_port(
    server: Any, address: str, secured: Secured | None, check: ClientCheck | None = None
) -> int:
    """Bind an address, with TLS if there is an identity, and return its port.

    Args:
        server: The server.
        address: ``ip:port``.
        secured: The identity; ``None`` = no TLS.
        check: Whether clients need a certificate; ``None`` = as the identity says.

    Raises:
        RuntimeError: The address is in use or not local.
    """
    if secured is None:
        return int(server.add_insecure_port(address))
    made = credentials(secured.identity, check or secured.check)
    return int(server.add_secure_port(address, made))


def guarded(
    server: Any,
    policy: CallPolicy | None,
    on_refused: OnRefused,
    lasting_s: Mapping[str, float] | None = None,
) -> Any:
    """Return what takes handlers: a ``GuardedServer``, or without a policy the server itself."""
    return server if policy is None else GuardedServer(server, policy, on_refused, lasting_s)


class GuardedServer:
    """Adds handlers to a server, each behind the check of its caller's role.

    Args:
        server: A ``grpc.aio`` server.
        policy: Roles and what they may call.
        on_refused: Called with the peer's address, its names and the reason of each refusal.
        lasting_s: Seconds after which the calls of a method are ended, by path, for streams that
            would otherwise outlive the maximum age of their connections.
    """

    def __init__(
        self,
        server: Any,
        policy: CallPolicy,
        on_refused: OnRefused,
        lasting_s: Mapping[str, float] | None = None,
    ) -> None:
        self._server = server
        self._policy = policy
        self._on_refused = on_refused
        self._lasting_s = lasting_s or {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers to serve."""
        self._server.add_generic_rpc_handlers(tuple(_Guarded(each, self) for each in handlers))

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: generated code calls this besides ``add_generic_rpc_handlers``."""

    def guard(self, path: str, handler: Any) -> Any:
        """Return a handler that checks the caller first."""
        kind = next(each for each in _KINDS if getattr(handler, each) is not None)
        run = getattr(handler, kind)
        lasting_s = self._lasting_s.get(path)

        if inspect.isasyncgenfunction(run):

            async def generated(request: Any, context: Any) -> Any:
                await self._check(path, context)
                async for each in run(request, context):
                    yield each

            return handler._replace(**{kind: generated})

        async def checked(request: Any, context: Any) -> Any:
            await self._check(path, context)
            return await run(request, context)

        async def lasting(request: Any, context: Any) -> Any:
            await self._check(path, context)
            try:
                async with asyncio.timeout(lasting_s):
                    return await run(request, context)
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the connection has reached its maximum age"
                )

        return handler._replace(**{kind: checked if lasting_s is None else lasting})

    async def _check(self, path: str, context: Any) -> None:
        peer = peer_of(context)
        reason = self._policy.refusal(path, peer)
        if reason is not None:
            self._on_refused(context.peer(), peer, reason)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)


class _Guarded(grpc.GenericRpcHandler):
    """A handler whose methods check their callers."""

    def __init__(self, inner: grpc.GenericRpcHandler, server: GuardedServer) -> None:
        self._inner = inner
        self._server = server
        self._known: dict[str, Any] = {}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; ``None`` = not of this service."""
        path = str(details.method)
        if (known := self._known.get(path)) is not None:
            return known
        found = self._inner.service(details)
        if found is None:
            return None
        made = self._server.guard(path, found)
        if len(self._known) < MAX_KNOWN_METHODS:
            self._known[path] = made
        return made


def _configuration(material: Material) -> Any:
    pair = (material.key, material.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=material.ca)
