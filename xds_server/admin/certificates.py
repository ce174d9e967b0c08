"""Certificates that end soon: this server's, its clients', and those of Envoys' listeners.

Rules:

1. A client's certificate is the one of its live connection, which may be ``--tls-max-age`` old
   (``Validity.is_overdue``).
2. Envoys read the files that the fleet names on their own machines. Where such a path is a file
   here too, its certificate is judged: most fleets have the same files everywhere. What cannot be
   read here says nothing. A file is read again when its time of change differs.
3. An Envoy may serve another certificate than the file has: it keeps the old one where it cannot
   use the new one, or does not see it. So each TLS listener of each connected Envoy is asked in a
   handshake every ``ASK_EVERY_S``. A listener on a wildcard address is asked at the address that
   the Envoy connects from, one on loopback only if that is on loopback, too. One that does not
   answer says nothing.
4. At most ``MAX_SHOWN`` are returned, this server's first; ``MAX_FILES`` files are looked at, and
   ``MAX_ASKED`` listeners, ``ASKED_AT_ONCE`` at a time. What a file tells is not told again for
   each Envoy.
"""

from __future__ import annotations

import asyncio
import ipaddress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn
from urllib.parse import unquote

from tidegate_common.tls.pem import shown_validity, validity
from xds_server.applications.traffic.verdict import CertificateState
from xds_server.fleet.model.fields import split_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Protocol

    from tidegate_common.tls.pem import Validity
    from tidegate_common.tls.settings import Secured
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.model.listener import FurtherListener, ListenerSpec
    from xds_server.protocol.messages import ClientView

    class AsksServer(Protocol):
        """Asks a TLS server for its certificate."""

        async def __call__(self, host: str, port: int, *, proxy_protocol: bool) -> Validity:
            """Return when it holds; raise ``OSError`` or ``ValueError`` if that is not known."""


MAX_SHOWN: Final = 20
MAX_FILES: Final = 1_000
MAX_FILE_BYTES: Final = 2**20
MAX_ASKED: Final = 1_000
ASKED_AT_ONCE: Final = 16
ASK_EVERY_S: Final = 10.0


class _Served(NamedTuple):
    """A TLS listener of an Envoy."""

    front: str
    """Which listener, in words."""
    envoy: str
    host: str
    port: int
    proxy_protocol: bool


class ServedCertificates:
    """Asks Envoys' listeners for the certificates that clients get; see the module's rules.

    Args:
        fleet: Returns the fleet in force; ``None`` = there is none yet.
        clients: Returns the connected clients.
        ask: Asks one server.
    """

    def __init__(
        self,
        fleet: Callable[[], Fleet | None],
        clients: Callable[[], Iterable[ClientView]],
        ask: AsksServer = shown_validity,
    ) -> None:
        self._fleet = fleet
        self._clients = clients
        self._ask = ask
        self._known: dict[_Served, Validity] = {}

    def ending(self, now: float, but: Iterable[str] = ()) -> Iterator[CertificateState]:
        """Yield those that end soon.

        Args:
            now: Unix seconds.
            but: Listeners, in words, that are told of already.
        """
        told = set(but)
        for each, held in self._known.items():
            if each.front not in told and held.ends_soon(now):
                owner = f"{each.front} at Envoy {each.envoy}"
                yield CertificateState(owner, held.ends - now)

    async def look(self) -> None:
        """Ask all listeners once."""
        free = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(each: _Served) -> tuple[_Served, Validity] | None:
            async with free:
                try:
                    held = await self._ask(each.host, each.port, proxy_protocol=each.proxy_protocol)
                except (OSError, ValueError):
                    return None
            return each, held

        asked = list(dict.fromkeys(islice(self._listeners(), MAX_ASKED)))
        found = await asyncio.gather(*map(one, asked))
        self._known = dict(each for each in found if each is not None)

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(ASK_EVERY_S)

    def _listeners(self) -> Iterator[_Served]:
        fleet = self._fleet()
        if fleet is None:
            return
        secured = [
            (front, *split_host_port(spec.address), spec.proxy_protocol)
            for front, spec in _fronts(fleet)
            if spec.tls is not None
        ]
        for each in self._clients() if secured else ():
            if each.kind == "envoy" and any(
                one.short == "LDS" and one.version_acked for one in each.types
            ):
                peer = _host_of(each.peer)
                for front, host, port, proxy_protocol in secured:
                    at = _reached(host, peer)
                    if at is not None:
                        yield _Served(front, each.node, at, port, proxy_protocol)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_HERE: Final = ipaddress.ip_address("127.0.0.1")
_IPV6: Final = 6


def _host_of(peer: str) -> _Address | None:
    """Return the address of a peer as gRPC writes it; ``None`` = not known."""
    scheme, _, rest = peer.partition(":")
    if scheme == "unix":
        return _HERE
    try:
        host = ipaddress.ip_address(split_host_port(unquote(rest))[0])
    except ValueError:
        return None
    return (host.ipv4_mapped or host) if host.version == _IPV6 else host


def _reached(listens: str, peer: _Address | None) -> str | None:
    """Return where a listener of a peer can be asked; ``None`` = not from here."""
    host = ipaddress.ip_address(listens)
    if host.is_unspecified:
        return None if peer is None else str(peer)
    if host.is_loopback and (peer is None or not peer.is_loopback):
        return None
    return str(host)


class Certificates:
    """Finds certificates to care about; see the module's rules.

    Args:
        secured: This server's identity; ``None`` = no TLS.
        clients: Returns the connected clients.
        wall_clock: Unix seconds.
        files: Returns the certificate files that the fleet names, each with whose they are.
        served: Those that Envoys' listeners show; ``None`` = they are not asked.
    """

    def __init__(
        self,
        secured: Secured | None,
        clients: Callable[[], Iterable[ClientView]],
        wall_clock: Callable[[], float],
        files: Callable[[], Iterable[tuple[str, str]]] = tuple,
        served: ServedCertificates | None = None,
    ) -> None:
        self._secured = secured
        self._clients = clients
        self._wall_clock = wall_clock
        self._files = files
        self._served = served
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
        if self._served is not None:
            shown.extend(self._served.ending(now, [each.owner for each in shown]))
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
    for front, spec in _fronts(fleet):
        if spec.tls is not None:
            yield front, spec.tls.certificate
    for pool in fleet.pools:
        if pool.upstream_tls is not None and pool.upstream_tls.certificate is not None:
            yield f"Envoy to pool {pool.name}", pool.upstream_tls.certificate
    for name, tls in (
        ("pickers", fleet.pickers.tls),
        ("gateways", fleet.gateway.tls if fleet.gateway is not None else None),
    ):
        if tls is not None and tls.certificate is not None:
            yield f"Envoy to {name}", tls.certificate


def _fronts(fleet: Fleet) -> Iterator[tuple[str, ListenerSpec | FurtherListener]]:
    """Yield the listeners of a fleet, each with its name in words."""
    yield "the listener", fleet.listener
    for each in fleet.listener.further:
        yield f"listener {each.name}", each


def _validity(path: str) -> Validity | None:
    """Return when a file's certificate holds; ``None`` if it has none that can be read."""
    with Path(path).open("rb") as file:
        try:
            return validity(file.read(MAX_FILE_BYTES))
        except ValueError:
            return None
