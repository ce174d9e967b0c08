"""Callers of the admin API: who they are, how that is known, what their roles may call. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tidegate_api.admin.v1 import admin_pb2
from tidegate_common.tls.roles import ADMINS, NONE, OPERATORS, READERS, MethodRoles, Peer, Roles

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc

    from tidegate_common.unix import LocalUser

ADMIN_SERVICE: Final = "tidegate.admin.v1.Admin"
_CSDS: Final = "/envoy.service.status.v3.ClientStatusDiscoveryService"
_ROLES: Final[Mapping[admin_pb2.Access.ValueType, Roles]] = {
    admin_pb2.ACCESS_UNSPECIFIED: NONE,
    admin_pb2.ACCESS_READERS: READERS,
    admin_pb2.ACCESS_OPERATORS: OPERATORS,
    admin_pb2.ACCESS_ADMINS: ADMINS,
}
_METHODS: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods
ACCESS: Final = MethodRoles(
    {
        **{
            f"/{ADMIN_SERVICE}/{each.name}": _ROLES[each.GetOptions().Extensions[admin_pb2.access]]
            for each in _METHODS
        },
        f"{_CSDS}/FetchClientStatus": READERS,
        f"{_CSDS}/StreamClientStatus": READERS,
    }
)
"""Roles by method."""

CHANGES: Final = frozenset(path for path, roles in ACCESS.methods.items() if roles != READERS)
"""The methods that change something."""


How = Literal["certificate", "token", "user", "nobody"]
"""What an identity follows from: names in a certificate, a token, the OS user; or nothing."""

ANONYMOUS: Final = "anonymous"
"""Identity of callers of a port without TLS and tokens."""
OWN_AUTHORS: Final = frozenset({ANONYMOUS, "tidegate", "fleet file"})
"""Authors that the control server itself writes. A caller of such a name has its kind before it."""
_RANKS: Final = ("admin", "operator", "viewer")


class CallEnded(Exception):  # noqa: N818 - a call ends with a status, which need not be an error
    """A call ends with a status other than OK."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """What a port knows of a caller."""

    address: str
    """For messages: ``ipv4:10.0.0.7:4711``, or that of a Unix socket."""
    host: str
    """The address without its port; failures are counted by it."""
    peer: Peer = Peer()  # noqa: RUF009 - a tuple
    """Names in its certificate."""
    encrypted: bool = False
    """The connection is TLS."""
    user: LocalUser | None = None
    """The OS user at the other end of a Unix socket."""
    user_name: str = ""
    authorization: str | None = None
    """The header ``authorization``; ``None`` = there is none."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    address: str
    identity: str
    how: How
    roles: Roles = NONE

    @property
    def rank(self) -> str:
        """The role that may do most; ``none`` without roles."""
        return next((each for each in _RANKS if each in self.roles), "none")

    def author(self, words: str) -> str:
        """Return the author of a revision: the identity, and what the caller says besides."""
        reserved = self.identity in OWN_AUTHORS and self.how != "nobody"
        name = f"{self.how} {self.identity}" if reserved else self.identity
        return f"{name} ({words})" if words and words != self.identity else name
