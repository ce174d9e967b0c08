"""TLS contexts for questions to replicas, from the files that a pool's ``upstream_tls`` names.

What is checked is what Envoys check: with ``ca`` the chain and the time, with ``ca`` and
``server_name`` the name too, without ``ca`` nothing.

Rules:

1. Files are those of this machine. They are read in a thread, only for a question, and looked at
   again for one that comes ``LOOK_S`` later or more. A look serves all who wait for it.
2. Changed files count once a second look finds them unchanged, because they are replaced one after
   the other. Each new connection is made with what is in force then.
3. Files that cannot be used change nothing: what was in force stays. Where nothing was, each
   question has an error, and nothing is sent in the clear.
4. A fault of files is logged when it is found, and again if it is another one. A failed handshake
   is logged once in ``SILENCE_S`` for an address.
5. Contexts are kept for ``MAX_KEPT`` settings, those that were asked for last.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self

import structlog

from tidegate_common.tls import pem

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S: Final = 1.0
"""Least time between two looks at the same files, seconds."""
SILENCE_S: Final = 600.0
MAX_KEPT: Final = 1024
MAX_FAILED: Final = 1024
"""Addresses whose failed handshake is remembered as logged."""

Alpn = Literal["http/1.1", "h2"]
"""ALPN protocol to offer."""

_MAX_REASON: Final = 300
_FIX: Final = "paths of `upstream_tls` are those of each machine that asks replicas"
_log = structlog.stdlib.get_logger("tidegate.tls")
_Stamp = tuple[tuple[int, int, int], ...]


class ReplicaTls(NamedTuple):
    """How a pool's replicas are spoken to over TLS; paths are those of the machine that reads."""

    ca: str | None = None
    """Certificates (PEM) that a replica's must be signed by; ``None`` = nothing is checked."""
    certificate: str | None = None
    """Own certificate (PEM)."""
    key: str | None = None
    server_name: str | None = None
    """Name to ask for, and, with ``ca``, the name that a replica's certificate must have."""

    @classmethod
    def of(cls, given: _Settings) -> Self:
        """Return settings of another kind as these."""
        return cls(given.ca, given.certificate, given.key, given.server_name)


class _Settings(Protocol):
    """``ReplicaTls``, or what has the same fields."""

    @property
    def ca(self) -> str | None: ...
    @property
    def certificate(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def server_name(self) -> str | None: ...


class ReplicaTlsError(ValueError):
    """Files that cannot be used; the message names them and what would be right."""


def client_context(tls: _Settings, protocol: Alpn) -> ssl.SSLContext:
    """Return the TLS context for a pool's replicas, as Envoys use it; reads files.

    Raises:
        ReplicaTlsError: A file cannot be read, or has no certificate or key that fits.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.ca is not None and tls.server_name is not None
    if tls.ca is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        _try_to_read("ca", tls.ca)
        try:
            context.load_verify_locations(cafile=tls.ca)
        except (ssl.SSLError, OSError):
            raise ReplicaTlsError(f"`ca`: {tls.ca} contains no certificates (PEM)") from None
    if tls.certificate is not None and tls.key is not None:
        _present(context, tls.certificate, tls.key)
    context.set_alpn_protocols([protocol])
    return context


def _present(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _try_to_read("certificate", certificate)
    if pem.is_encrypted(_try_to_read("key", key)):
        raise ReplicaTlsError(f"`key`: {key} has a passphrase, and a service cannot ask for it")
    try:
        context.load_cert_chain(certificate, key, password="")  # OpenSSL would ask a terminal
    except ssl.SSLError as error:
        raise ReplicaTlsError(
            f"`key`: {key} is not the key of the certificate {certificate}"
            if error.reason == "KEY_VALUES_MISMATCH"
            else f"`certificate`: {certificate} or {key} is not valid (PEM)"
        ) from None
    except OSError as error:
        raise ReplicaTlsError(f"`certificate`: {certificate}: {error.strerror}; {_FIX}") from None


def _try_to_read(field: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(2**20)
    except OSError as error:
        raise ReplicaTlsError(f"`{field}`: cannot read {path}: {error.strerror}; {_FIX}") from None


def _stamp(tls: ReplicaTls) -> _Stamp:
    return tuple(_stamp_of(path) for path in tls[:3] if path is not None)


def _stamp_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path would be made for each look
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


class _Files:
    """One pool's files: the context in force and what was seen of them."""

    def __init__(self, tls: ReplicaTls, protocol: Alpn) -> None:
        self._tls = tls
        self._protocol = protocol
        self._held: _Stamp | None = None
        self._seen: _Stamp | None = None
        self.context: ssl.SSLContext | None = None
        self.fault = ""
        """Why the files of now are not in force; empty if they are."""
        self.looked_at = float("-inf")
        self.looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Look at the files, and put them in force if they changed and can be used; blocks."""
        stamp = _stamp(self._tls)
        if self.context is not None:
            if stamp == self._held:
                self._seen, self.fault = stamp, ""
                return
            if stamp != self._seen:
                self._seen = stamp
                return
        try:
            self.context = client_context(self._tls, self._protocol)
        except ReplicaTlsError as error:
            self.fault = str(error)
            return
        self._held = self._seen = stamp
        self.fault = ""


class ReplicaContexts:
    """The contexts of a process; see the module's rules.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[ReplicaTls, Alpn], _Files] = {}
        self._failed: dict[str, float] = {}
        """When a failed handshake was last logged, monotonic seconds, by address."""

    def __len__(self) -> int:
        """Return the number of settings whose contexts are kept."""
        return len(self._kept)

    async def of(self, tls: ReplicaTls, protocol: Alpn = "http/1.1") -> ssl.SSLContext:
        """Return the context in force.

        Raises:
            ReplicaTlsError: There is none, because files cannot be used.
        """
        key = (tls, protocol)
        files = self._kept.pop(key, None)
        if files is None:
            files = _Files(tls, protocol)
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = files  # the last one is the last used
        if self._clock() - files.looked_at >= LOOK_S:
            if files.looking is None:
                files.looking = asyncio.create_task(self._look(files))
            await asyncio.shield(files.looking)
        if files.context is None:
            raise ReplicaTlsError(files.fault)
        return files.context

    async def options(self, tls: ReplicaTls | None) -> dict[str, Any]:
        """Return what a request of aiohttp needs for these settings; nothing for ``None``.

        Raises:
            ReplicaTlsError: Files cannot be used.
        """
        if tls is None:
            return {}
        return {"ssl": await self.of(tls), "server_hostname": tls.server_name}

    def failed(self, address: str, error: BaseException) -> None:
        """Log a failed handshake with a replica, unless it was logged a short time ago."""
        now = self._clock()
        if now - self._failed.get(address, float("-inf")) < SILENCE_S:
            return
        self._failed.pop(address, None)
        while len(self._failed) >= MAX_FAILED:
            del self._failed[next(iter(self._failed))]
        self._failed[address] = now
        _log.warning("replica_not_trusted", address=address, reason=str(error)[:_MAX_REASON])

    async def _look(self, files: _Files) -> None:
        before, fault = files.context, files.fault
        try:
            await asyncio.to_thread(files.look)
        finally:
            files.looked_at, files.looking = self._clock(), None
        if files.fault and files.fault != fault:
            stays = "what was in force" if before is not None else "replicas are not asked"
            _log.error("replica_files_not_taken", reason=files.fault, instead=stays)
        elif before is not None and files.context is not before:
            _log.info("replica_files_taken")
