"""TLS contexts of servers in the event loop, which follow an identity.

Rules:

1. Each handshake uses what is in force of the files at that moment.
2. Sessions are not resumed, because a resumed one would not be verified again.
3. A peer whose certificate has expired has no identity, whatever the handshake said.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any, Literal

from tidegate_common.tls.files import Identity, Material, present, trust
from tidegate_common.tls.roles import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

ClientCheck = Literal["required", "optional"]
"""Whether a server demands a certificate of its clients, or only checks one that is presented."""


def server_context(
    identity: Identity, check: ClientCheck, protocols: Sequence[str]
) -> ssl.SSLContext:
    """Return a context for ``create_server`` that follows the files.

    Args:
        identity: The files.
        check: What is demanded of clients.
        protocols: Names for ALPN, the preferred first.
    """
    made = (identity.material, _made(identity.material, check, protocols))
    context = _made(identity.material, check, protocols)

    def chosen(handshake: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        nonlocal made
        material = identity.material
        if made[0] is not material:
            made = (material, _made(material, check, protocols))
        handshake.context = made[1]

    context.sni_callback = chosen  # called with and without a name
    return context


def _made(material: Material, check: ClientCheck, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED if check == "required" else ssl.CERT_OPTIONAL
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols(list(protocols))
    trust(context, material)
    present(context, material)
    return context


def client_context(material: Material) -> ssl.SSLContext:
    """Return a context for a client that presents its certificate and checks the server's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    trust(context, material)
    present(context, material)
    return context


def peer_of(transport: Any, now: float | None = None) -> Peer:
    """Return the peer of an asyncio transport.

    Args:
        transport: The transport of a connection over TLS.
        now: Unix seconds; ``None`` = the system's.
    """
    connection = transport.get_extra_info("ssl_object")
    found = None if connection is None else connection.getpeercert()
    if not found:
        return Peer()
    ends = ssl.cert_time_to_seconds(str(found["notAfter"]))
    if ends <= (time.time() if now is None else now):
        return Peer()
    names = [(str(kind), str(value)) for kind, value in found.get("subjectAltName", ())]
    return Peer(
        tuple(value for kind, value in names if kind == "URI"),
        tuple(value for kind, value in names if kind == "DNS"),
    )
