"""Certificates that end soon: this server's, its clients', and those that the fleet names.

Rules:

1. A client's certificate is the one of its live connection, which may be ``--tls-max-age`` old
   (``Validity.is_overdue``).
2. Envoys read the files that the fleet names on their own machines. Where such a path is a file
   here too, its certificate is judged: most fleets have the same files everywhere. What cannot be
   read here says nothing. A file is read again when its time of change differs.
3. At most ``MAX_SHOWN`` are returned, this server's first, and ``MAX_FILES`` files are looked at.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate_common.tls.pem import validity
from xds_server.traffic.verdict import CertificateState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tidegate_common.tls.pem import Validity
    from tidegate_common.tls.settings import Secured
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.protocol.messages import ClientView

MAX_SHOWN: Final = 20
MAX_FILES: Final = 1_000
MAX_FILE_BYTES: Final = 2**20


class Certificates:
    """Finds certificates to care about; see the module's rules.

    Args:
        secured: This server's identity; ``None`` = no TLS.
        clients: Returns the connected clients.
        wall_clock: Unix seconds.
        files: Returns the certificate files that the fleet names, each with whose they are.
    """

    def __init__(
        self,
        secured: Secured | None,
        clients: Callable[[], Iterable[ClientView]],
        wall_clock: Callable[[], float],
        files: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        self._secured = secured
        self._clients = clients
        self._wall_clock = wall_clock
        self._files = files
        self._read: dict[str, tuple[float, Validity | None]] = {}
        """Time of change and validity of each file, by path."""

    def found(self) -> Sequence[CertificateState]:
        """Return those that end soon, or whose new files cannot be used."""
        now, shown = self._wall_clock(), []
        if self._secured is not None:
            identity = self._secured.identity
            held = identity.material.validity
            if identity.fault or held.ends_soon(now):
                left = held.ends - now
                shown.append(CertificateState("the control server", left, identity.fault))
        shown.extend(self._of_files(now))
        if self._secured is not None:
            shown.extend(self._of_clients(self._secured.max_age_s, now))
        return shown[:MAX_SHOWN]

    def _of_files(self, now: float) -> Iterator[CertificateState]:
        before, self._read = self._read, {}
        for owner, path in islice(self._files(), MAX_FILES):
            try:
                changed = Path(path).stat().st_mtime
                known = before.get(path)
                if known is None or known[0] != changed:
                    known = changed, _validity(path)
            except OSError:
                continue
            self._read[path] = known
            held = known[1]
            if held is not None and held.ends_soon(now):
                yield CertificateState(owner, held.ends - now)

    def _of_clients(self, max_age_s: float, now: float) -> Iterator[CertificateState]:
        told = set()
        for each in self._clients():
            held, owner = each.certificate, f"{each.kind} {each.node}"
            if held is None or owner in told or not held.is_overdue(now, max_age_s):
                continue
            told.add(owner)
            yield CertificateState(owner, held.ends - now)


def certificate_files(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Yield the certificate files that a fleet names: whose they are, and the path."""
    listener = fleet.listener
    if listener.tls is not None:
        yield "the listener", listener.tls.certificate
    for front in listener.further:
        if front.tls is not None:
            yield f"listener {front.name}", front.tls.certificate
    for pool in fleet.pools:
        if pool.upstream_tls is not None and pool.upstream_tls.certificate is not None:
            yield f"Envoy to pool {pool.name}", pool.upstream_tls.certificate
    for name, tls in (
        ("pickers", fleet.pickers.tls),
        ("gateways", fleet.gateway.tls if fleet.gateway is not None else None),
    ):
        if tls is not None and tls.certificate is not None:
            yield f"Envoy to {name}", tls.certificate


def _validity(path: str) -> Validity | None:
    """Return when a file's certificate holds; ``None`` if it has none that can be read."""
    with Path(path).open("rb") as file:
        try:
            return validity(file.read(MAX_FILE_BYTES))
        except ValueError:
            return None
