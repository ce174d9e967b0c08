"""Who calls a port of the gateway, and whether its roles are enough. Pure.

Rules:

1. The ports for questions are for the role envoy, those for changes for operators and
   administrators.
2. With ``by_envoy`` an Envoy, too, may send changes, and then its client counts: Envoy names the
   client's certificate in ``x-forwarded-client-cert``, over whatever the client sent. A certificate
   of Envoy's own that has further roles gives its clients none.
3. A peer without a certificate is an Envoy for questions where certificates are optional, and for
   changes nothing.

Source: Envoy's ``x-forwarded-client-cert``, one element as SANITIZE_SET writes it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tidegate_common.tls.roles import NONE, OPERATORS, MethodRoles, Peer, Roles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate_common.tls.roles import CallPolicy
    from tidegate_common.tls.settings import Secured

NAMES_HEADER: Final = "x-forwarded-client-cert"
ENVOYS: Final[Roles] = frozenset({"envoy"})
MAX_NAMES_BYTES: Final = 16 * 1024
"""Longest value of the header; a longer one is not read, so it names no client."""
_PAIR: Final = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^;,"]*)(?:;|$)')


class Callers:
    """Judges the callers of one port.

    Args:
        secured: Identity and roles; ``None`` = nothing is checked.
        paths: What the port serves.
        admin: Whether it takes changes.
        by_envoy: Whether Envoys may send changes for their clients.
        open_: Paths that an Envoy may call for itself, such as its health checks.
    """

    def __init__(
        self,
        secured: Secured | None,
        paths: Iterable[str],
        *,
        admin: bool,
        by_envoy: bool,
        open_: Iterable[str] = (),
    ) -> None:
        self.for_clients = admin and by_envoy and secured is not None
        """Whether Envoys are let in for their clients."""
        self._open = frozenset(open_)
        roles = OPERATORS if admin else ENVOYS
        self._needed = MethodRoles(dict.fromkeys(paths, roles))
        let_in = roles | ENVOYS if self.for_clients else roles
        access = MethodRoles(dict.fromkeys(paths, let_in))
        anonymous = NONE if admin else ENVOYS
        self.policy: CallPolicy | None = (
            None if secured is None else secured.policy(access, anonymous=anonymous)
        )
        """Who is let in; ``None`` = nothing is checked."""

    def refusal(self, path: str, peer: Peer) -> str | None:
        """Return why a peer is not let in; ``None`` = it is."""
        return None if self.policy is None else self.policy.refusal(path, peer)

    def clients_refusal(self, path: str, peer: Peer, named: str | None) -> str | None:
        """Return why a call is refused for the client of an Envoy (rule 2); ``None`` = it is not.

        Args:
            path: What is called.
            peer: The peer, which was let in.
            named: Value of the header with its client's names.
        """
        if self.policy is None or not self.for_clients or path in self._open:
            return None
        if "envoy" not in self.policy.roles(peer):
            return None
        client = client_of(named)
        if client is None:
            return f"{path:.120} needs a client's certificate, and this Envoy ({peer}) names none"
        return self._needed.refusal(path, client, self.policy.table.of(client))


def client_of(named: str | None) -> Peer | None:
    """Return the client that an Envoy names; ``None`` if it names none or several."""
    if not named or len(named) > MAX_NAMES_BYTES:
        return None
    uris: list[str] = []
    dns: list[str] = []
    at = 0
    while at < len(named):
        found = _PAIR.match(named, at)
        if found is None:
            return None
        value = found[2]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        kind = found[1].lower()
        if value and kind in {"uri", "dns"}:
            (uris if kind == "uri" else dns).append(value)
        at = found.end()
    return Peer(tuple(uris), tuple(dns)) if uris or dns else None
