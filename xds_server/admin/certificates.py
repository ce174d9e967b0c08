"""Certificates that end soon: this server's, and those that its clients have presented.

Rules:

1. A client's certificate is the one of its live connection, which may be ``--tls-max-age`` old and
   replaced since. So it is judged only where a certificate has at least ``LIVES`` such ages of
   life left when it begins to count, and its files may have been replaced in time.
2. At most ``MAX_SHOWN`` are returned, this server's first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_common.tls.pem import SOON_SHARE
from xds_server.traffic.verdict import CertificateState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tidegate_common.tls.settings import Secured
    from xds_server.protocol.messages import ClientView

LIVES: Final = 2.0
MAX_SHOWN: Final = 20


class Certificates:
    """Finds certificates to care about; see the module's rules.

    Args:
        secured: This server's identity; ``None`` = no TLS.
        clients: Returns the connected clients.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        secured: Secured | None,
        clients: Callable[[], Iterable[ClientView]],
        wall_clock: Callable[[], float],
    ) -> None:
        self._secured = secured
        self._clients = clients
        self._wall_clock = wall_clock

    def found(self) -> Sequence[CertificateState]:
        """Return those that end soon, or whose new files cannot be used."""
        if self._secured is None:
            return ()
        now = self._wall_clock()
        identity = self._secured.identity
        held = identity.material.validity
        shown = []
        if identity.fault or held.ends_soon(now):
            left = held.ends - now
            shown.append(CertificateState("the control server", left, identity.fault))
        shown.extend(self._of_clients(self._secured.max_age_s, now))
        return shown[:MAX_SHOWN]

    def _of_clients(self, max_age_s: float, now: float) -> Iterator[CertificateState]:
        told = set()
        for each in self._clients():
            held, owner = each.certificate, f"{each.kind} {each.node}"
            if held is None or owner in told or not held.ends_soon(now):
                continue
            if SOON_SHARE * held.life_s >= LIVES * max_age_s:
                told.add(owner)
                yield CertificateState(owner, held.ends - now)
