"""Options of all services about identity, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - pydantic reads the annotation at run time
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Self

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tidegate_common.flags import Shown
from tidegate_common.tls import roles
from tidegate_common.tls.binds import open_ports
from tidegate_common.tls.contexts import ClientCheck, server_context
from tidegate_common.tls.files import Identity, TlsError, TlsFiles
from tidegate_common.tls.roles import NONE, CallPolicy, MethodRoles, Role, Roles, RoleTable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

DEFAULT_MAX_AGE_S: Final = 3600.0

_log = structlog.stdlib.get_logger("tidegate.tls")


def _named(given: str) -> str:
    roles.parse(given)
    return given


def _speaker(given: str) -> str:
    roles.parse_speaker(given)
    return given


ServerName = Annotated[str, Field(max_length=253), Shown("NAME", "TIDEGATE_TLS_SERVER_NAME")]


class IdentitySettings(BaseModel):
    """Certificates, roles and what may be plain."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tls_cert: Annotated[Path | None, Shown("FILE", "TIDEGATE_TLS_CERT")] = None
    """Own certificate (PEM)."""
    tls_key: Annotated[Path | None, Shown("FILE", "TIDEGATE_TLS_KEY")] = None
    """Its key (PEM)."""
    tls_ca: Annotated[Path | None, Shown("FILE", "TIDEGATE_TLS_CA")] = None
    """Authorities that sign peers' certificates (PEM)."""
    tls_client: ClientCheck = "required"
    """Whether clients need a certificate."""
    tls_max_age: Annotated[float, Field(ge=1, le=86_400), Shown("SECONDS")] = DEFAULT_MAX_AGE_S
    """Age at which a connection over TLS is replaced, seconds."""
    role: (
        Annotated[
            tuple[Annotated[str, AfterValidator(_named)], ...],
            Field(max_length=roles.MAX_NAMES),
            Shown("ROLE=NAME"),
        ]
        | None
    ) = None
    """Name in certificates (spiffe://... or DNS) that has a role, repeatable; a URI that ends in /*
    stands for all below it; default: spiffe://tidegate/ROLE and all below it."""
    speaks: (
        Annotated[
            tuple[Annotated[str, AfterValidator(_speaker)], ...],
            Field(max_length=roles.MAX_NAMES),
            Shown("NAME=ID"),
        ]
        | None
    ) = None
    """Id (of a replica, or of a picker) for which a name in certificates speaks, repeatable; * =
    all. A URI below one that is mapped with /* needs none, as spiffe://tidegate/reporter/ID."""
    health_port: Annotated[int, Field(ge=0, le=65_535), Shown("PORT")] | None = None
    """Port for /healthz alone, without TLS, beside --metrics."""
    insecure: bool = False
    """Let other machines reach ports without TLS, where something else protects them."""

    PORTS: ClassVar[tuple[str, ...]] = ()
    """The settings that are addresses of ports."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        given = [self.tls_cert, self.tls_key, self.tls_ca]
        if any(given) and not all(given):
            raise ValueError("--tls-cert, --tls-key and --tls-ca belong together; give all three")
        for option, names in (("--role", self.role), ("--speaks", self.speaks)):
            if names and not any(given):
                raise ValueError(
                    f"{option} needs certificates: give --tls-cert, --tls-key and --tls-ca"
                )
        return self

    @property
    def open_ports(self) -> str:
        """The options that bind ports which other machines can reach; empty if there are none."""
        given = {f"--{name.replace('_', '-')}": str(getattr(self, name)) for name in self.PORTS}
        return open_ports(given)

    @property
    def files(self) -> TlsFiles | None:
        """The files; ``None`` = no TLS."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)


@dataclass(frozen=True, slots=True)
class Secured:
    """Identity and roles of one service."""

    identity: Identity
    table: RoleTable
    check: ClientCheck
    max_age_s: float

    def policy(self, access: MethodRoles, anonymous: Roles = NONE) -> CallPolicy:
        """Return who may call what.

        Args:
            access: Roles by method.
            anonymous: Roles of clients without a certificate, where they need none.
        """
        return CallPolicy(access, self.table, anonymous if self.check == "optional" else NONE)

    def context(self, protocols: Sequence[str]) -> ssl.SSLContext:
        """Return the context of a server in the event loop."""
        return server_context(self.identity, self.check, protocols)


def secured(settings: IdentitySettings) -> Secured | None:
    """Return identity and roles of a service; ``None`` = it has no TLS.

    Raises:
        TlsError: The files cannot be used, or there are none and other machines can reach a port.
    """
    if settings.files is None:
        if reached := settings.open_ports:
            if not settings.insecure:
                raise TlsError(
                    f"{reached}: other machines could reach it without TLS, and any of them would"
                    " be believed; give --tls-cert, --tls-key and --tls-ca (`tidegate certs` makes"
                    " some to try), or listen on 127.0.0.1, or --insecure if something else"
                    " protects it"
                )
            _log.warning("open_without_tls", ports=reached)
        return None
    return Secured(
        Identity(settings.files),
        roles.table(settings.role or (), settings.speaks or ()),
        settings.tls_client,
        settings.tls_max_age,
    )


__all__ = ["IdentitySettings", "Role", "Secured", "ServerName", "secured"]
