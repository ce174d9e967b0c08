"""A process's certificate, key and authorities, from files that may be replaced while it runs.

Rules:

1. The files are read as a whole, tried together, and put in force together.
2. A change counts once the files are found unchanged at a second look, because they are replaced
   one after the other.
3. Files that cannot be used change nothing: what was in force stays, and the fault is logged once.
4. A message names files and says what is wrong. It never contains anything that a file contains.
5. A certificate that ends soon is logged when it is found, and again each day.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from tidegate_common.tls import pem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOK_S: Final = 1.0
"""Interval of looks at the files, seconds: a change is in force after at most two."""
MAX_BYTES: Final = 2**20
"""Most bytes of one file."""
REMIND_S: Final = 86_400.0
"""Seconds between two warnings that the same certificate ends soon."""

_log = structlog.stdlib.get_logger("tidegate.tls")
_Stamp = tuple[tuple[int, int, int], ...]


class TlsError(Exception):
    """Files that cannot be used; the message names them and says what would be right."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a process finds its certificate and what it trusts (PEM)."""

    certificate: Path
    """The certificate, followed by those that lead to an authority."""
    key: Path
    """Its private key, without a passphrase."""
    ca: Path
    """Authorities that sign peers' certificates."""


@dataclass(frozen=True, slots=True)
class Material:
    """The contents of the files, which fit together."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes
    validity: pem.Validity
    """When the certificate holds."""


class Identity:
    """What is in force of the files; see the module's rules.

    Args:
        files: The files.
        wall_clock: Unix seconds.

    Raises:
        TlsError: The files cannot be used.
    """

    def __init__(self, files: TlsFiles, wall_clock: Callable[[], float] = time.time) -> None:
        self.files = files
        self._wall_clock = wall_clock
        self._seen = self._held = self._stamp()
        self.fault = ""
        """Why the files of now are not in force; empty if they are."""
        self.material = self._read()
        self._warned: tuple[float, float] | None = None
        """End of the certificate that was logged last as ending soon, and when it was."""

    def look(self) -> bool:
        """Look at the files; return whether other ones came into force."""
        taken = self._look()
        self._warn()
        return taken

    def _warn(self) -> None:
        held, now = self.material.validity, self._wall_clock()
        if not held.ends_soon(now):
            return
        if self._warned is not None:
            ends, at = self._warned
            if ends == held.ends and now - at < REMIND_S:
                return
        self._warned = held.ends, now
        _log.warning(
            "certificate_ends_soon",
            certificate=str(self.files.certificate),
            days_left=self._days_left(),
        )

    def _days_left(self) -> float:
        return round((self.material.validity.ends - self._wall_clock()) / 86_400, 1)

    def _look(self) -> bool:
        stamp = self._stamp()
        if stamp == self._held:
            self._seen = stamp
            self.fault = ""
            return False
        if stamp != self._seen:
            self._seen = stamp
            return False
        try:
            self.material = self._read()
        except TlsError as error:
            if str(error) != self.fault:
                self.fault = str(error)
                _log.error("certificate_not_taken", reason=self.fault)
            return False
        self._held, self.fault = stamp, ""
        _log.info(
            "certificate_taken",
            certificate=str(self.files.certificate),
            days_left=self._days_left(),
        )
        return True

    async def follow(self) -> None:
        """Look at the files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _stamp(self) -> _Stamp:
        return tuple(map(_stamp_of, (self.files.certificate, self.files.key, self.files.ca)))

    def _read(self) -> Material:
        files = self.files
        certificate, key, ca = (_read(each) for each in (files.certificate, files.key, files.ca))
        if pem.is_encrypted(key):
            raise TlsError(f"{files.key} has a passphrase, and a service cannot ask for it")
        try:
            holds = pem.validity(certificate)
        except ValueError as error:
            raise TlsError(f"{files.certificate}: {error}") from None
        if holds.ends <= self._wall_clock():
            raise TlsError(f"the certificate {files.certificate} has expired")
        material = Material(certificate, key, ca, holds)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            trust(context, material)
        except (ssl.SSLError, UnicodeDecodeError):
            raise TlsError(f"{files.ca} contains no certificates (PEM)") from None
        try:
            present(context, material)
        except ssl.SSLError as error:
            raise TlsError(
                f"{files.key} is not the key of the certificate {files.certificate}"
                if error.reason == "KEY_VALUES_MISMATCH"
                else f"{files.certificate} or {files.key} is not valid (PEM)"
            ) from None
        return material


def trust(context: ssl.SSLContext, material: Material) -> None:
    """Let a context trust the authorities.

    Raises:
        ssl.SSLError: There are none.
    """
    context.load_verify_locations(cadata=material.ca.decode("ascii"))


def present(context: ssl.SSLContext, material: Material) -> None:
    """Let a context present the certificate.

    Raises:
        ssl.SSLError: Certificate and key do not fit together.
    """
    # Python loads them by name only; memory keeps the key off the disk.
    number = os.memfd_create("tidegate-tls")
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(material.certificate + b"\n" + material.key)
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{number}", password=lambda: b"")
    finally:
        os.close(number)


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise TlsError(f"{path} is larger than {MAX_BYTES} bytes")
    return data
