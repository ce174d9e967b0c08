"""Certificates of roles, and peers that present them."""

from __future__ import annotations

import shutil
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc

from support.certificates import Authority, Pair, openssl
from tidegate_common.tls.files import TlsFiles
from tidegate_common.tls.roles import TRUST_DOMAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

LOCAL = ("DNS:localhost", "IP:127.0.0.1")
IDS = {"picker": ("picker-1", "p1", "p2"), "reporter": ("u0",)}
"""Ids that certificates of tests name, if these do not say otherwise."""
KINDS = ("none", "of another authority", "expired")
"""Certificates that are not valid."""
ROLES = ("envoy", "picker", "gateway", "reporter", "viewer", "operator", "admin")
REFUSED, CUT, TAKEN = "refused", "no connection", "taken"
"""Verdicts on a call."""


@dataclass(frozen=True)
class Presented:
    """What a client presents and trusts; ``pair=None`` = no certificate."""

    ca: Path
    pair: Pair | None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a gRPC client."""
        if self.pair is None:
            return grpc.ssl_channel_credentials(self.ca.read_bytes())
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.pair.key.read_bytes(), self.pair.certificate.read_bytes()
        )

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel of its own, not shared with others of the same address."""
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
        return grpc.aio.secure_channel(address, self.channel_credentials(), options=options)

    def context(self) -> ssl.SSLContext:
        """Return the context of an HTTP client."""
        made = ssl.create_default_context(cafile=str(self.ca))
        if self.pair is not None:
            made.load_cert_chain(self.pair.certificate, self.pair.key)
        return made


class Machines:
    """An authority, the files of a server, and clients of each role.

    Args:
        folder: Where the files are made.
        name: Name of the authority, different from those of others in the folder.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.name = name
        self.authority = Authority(folder, name)
        self.files = TlsFiles(*(folder / f"{name}-server.{end}" for end in ("crt", "key", "pem")))
        self.renew_server()

    @property
    def options(self) -> dict[str, Any]:
        """Settings of a service with this identity."""
        files = self.files
        return {"tls_cert": files.certificate, "tls_key": files.key, "tls_ca": files.ca}

    def renew_server(self, signer: Machines | None = None) -> None:
        """Give the server another certificate, by renaming as certbot does.

        Args:
            signer: Another authority, which the server then trusts instead.
        """
        authority = (signer or self).authority
        names = [f"URI:{TRUST_DOMAIN}/picker/{each}" for each in IDS["picker"]]
        pair = authority.sign(f"{self.name}-new", *names, *LOCAL)
        shutil.copy(authority.own.certificate, self.folder / "new.pem")
        for new, old in (
            (pair.certificate, self.files.certificate),
            (pair.key, self.files.key),
            (self.folder / "new.pem", self.files.ca),
        ):
            new.replace(old)

    def client(self, role: str, *ids: str) -> Presented:
        """Return a client with the certificate of a role.

        Args:
            role: The role.
            ids: Ids that the certificate names; those of ``IDS`` if none are given.
        """
        named = ids or IDS.get(role, ())
        uris = [f"URI:{TRUST_DOMAIN}/{role}/{each}" for each in named]
        names = uris or [f"URI:{TRUST_DOMAIN}/{role}"]
        pair = self.authority.sign(f"{self.name}-{'-'.join((role, *ids))}", *names, *LOCAL)
        return Presented(self.authority.own.certificate, pair)

    def bare(self, role: str) -> Presented:
        """Return a client whose certificate has a role and names no id."""
        pair = self.authority.sign(f"{self.name}-bare-{role}", f"URI:{TRUST_DOMAIN}/{role}", *LOCAL)
        return Presented(self.authority.own.certificate, pair)

    def expired(self, role: str) -> Presented:
        """Return a client whose certificate ended a day ago."""
        pair = self.authority.sign(f"{self.name}-old-{role}", f"URI:{TRUST_DOMAIN}/{role}", days=-1)
        return Presented(self.authority.own.certificate, pair)

    def stranger(self, other: Machines, role: str) -> Presented:
        """Return a client that another authority has signed, and that trusts this server."""
        return Presented(self.authority.own.certificate, other.client(role).pair)

    def invalid(self, other: Machines, kind: str, roles: Iterable[str]) -> dict[str, Presented]:
        """Return a client of each role whose certificate is not valid.

        Args:
            other: Another authority.
            kind: One of ``KINDS``; without a certificate a client has no role, either.
            roles: The roles.
        """
        made: dict[str, Callable[[str], Presented]] = {
            "none": lambda _: self.nameless,
            "of another authority": lambda role: self.stranger(other, role),
            "expired": self.expired,
        }
        return {role: made[kind](role) for role in roles}

    @property
    def nameless(self) -> Presented:
        """A client without a certificate."""
        return Presented(self.authority.own.certificate, None)


def encrypted(pair: Pair, passphrase: str) -> Path:
    """Return a copy of a key that needs a passphrase."""
    path = pair.key.with_suffix(".enc")
    openssl(
        *("pkcs8", "-topk8", "-in", str(pair.key), "-out", str(path)),
        *("-passout", f"pass:{passphrase}"),
    )
    return path


def clients_of(machines: Machines) -> dict[str, Presented]:
    """Return a client of each role, and one whose name has no role."""
    return {role: machines.client(role) for role in (*ROLES, "unknown")}


async def page_verdict(url: str, who: Presented) -> str:
    """Read a page; return the verdict."""
    try:
        async with aiohttp.ClientSession() as http, http.get(url, ssl=who.context()) as answer:
            await answer.read()
            return REFUSED if answer.status == 403 else TAKEN
    except (aiohttp.ClientError, ConnectionError):
        return CUT
