"""Certificate files that a fleet names, as this machine has them."""

from __future__ import annotations

import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.doctor.diagnosis import Diagnosis, fault, risk
from tidegate_common.tls import pem
from tidegate_common.upstream.contexts import ReplicaTls, ReplicaTlsError, client_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fields import UpstreamTls
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.model.listener import ListenerTls

_DAY_S: Final = 86_400


class NamedFiles(NamedTuple):
    """Certificate files and the place of the fleet that names them."""

    place: str
    ca: str | None
    certificate: str | None
    key: str | None


def files_of(fleet: Fleet) -> list[NamedFiles]:
    """Return the certificate files that a fleet names."""
    listener = fleet.listener
    found = [_of_listener("listener.tls", listener.tls)]
    found += [
        _of_listener(f"listener.further[{each.name}].tls", each.tls) for each in listener.further
    ]
    found.append(_of_client("pickers.tls", fleet.pickers.tls))
    found.append(_of_client("gateway.tls", fleet.gateway.tls if fleet.gateway else None))
    found += [
        _of_client(f"pools[{pool.name}].upstream_tls", pool.upstream_tls) for pool in fleet.pools
    ]
    return [each for each in found if each is not None]


def _of_listener(place: str, tls: ListenerTls | None) -> NamedFiles | None:
    return None if tls is None else NamedFiles(place, tls.client_ca, tls.certificate, tls.key)


def _of_client(place: str, tls: UpstreamTls | None) -> NamedFiles | None:
    return None if tls is None else NamedFiles(place, tls.ca, tls.certificate, tls.key)


def examine(files: NamedFiles, now: float | None = None) -> Iterator[Diagnosis]:
    """Read files and yield what keeps Envoy from using them, now or soon.

    Args:
        files: The files.
        now: Unix seconds; ``None`` = those of this machine's clock.
    """
    now = time.time() if now is None else now
    try:
        client_context(ReplicaTls(files.ca, files.certificate, files.key), "h2")
    except ReplicaTlsError as error:
        yield fault(
            files.place, str(error), "put a file there that this machine's services can use"
        )
        return
    for path in (files.ca, files.certificate):
        if path is not None:
            yield from judge_validity(path, pem.validity(Path(path).read_bytes()), now)
    if files.key is not None and Path(files.key).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield risk(
            files.key,
            "is a private key that others than its owner may read",
            f"run `chmod 600 {files.key}`",
        )


def judge_validity(about: str, validity: pem.Validity, now: float) -> Iterator[Diagnosis]:
    """Yield what is wrong with the time in which a certificate holds; ``now`` in Unix seconds."""
    if now < validity.begins:
        yield fault(
            about,
            f"is valid from {_day(validity.begins)} on, which is later than this machine's clock",
            "set the clock (`timedatectl set-ntp true`), or wait",
        )
    elif now >= validity.ends:
        yield fault(about, f"has expired on {_day(validity.ends)}", "replace the certificate")
    elif validity.ends_soon(now):
        left = (validity.ends - now) / _DAY_S
        yield risk(about, f"expires in {left:.1f} days", "renew the certificate")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
