"""Roles of peers by the names in their certificates, and the roles that a call needs. Pure.

Rules:

1. A certificate has the roles that its names are mapped to. A name that is not mapped gives none.
2. Only subject alternative names count: URIs, compared as they are, and DNS names, compared without
   regard to case. Wildcards in certificates have no meaning here.
3. A mapped URI that ends in ``/*`` stands for all URIs below it.
4. A method that is not listed may be called by no role.
5. A reporter speaks for replicas, and a picker as a picker, by an id. A certificate names the ids
   that are the rest of its URIs below a mapped ``/*``, and those that ``--speaks`` gives to one of
   its names. No other id is believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Role = Literal["envoy", "picker", "gateway", "reporter", "viewer", "operator", "admin"]
Roles = frozenset[Role]

EVERY: Final[Roles] = frozenset(get_args(Role))
NONE: Final[Roles] = frozenset()
READERS: Final[Roles] = frozenset({"viewer", "operator", "admin"})
OPERATORS: Final[Roles] = frozenset({"operator", "admin"})
ADMINS: Final[Roles] = frozenset({"admin"})

HEALTH: Final[dict[str, Roles]] = {
    "/grpc.health.v1.Health/Check": EVERY,
    "/grpc.health.v1.Health/Watch": EVERY,
}
"""gRPC health, for a service's table of methods."""

TRUST_DOMAIN: Final = "spiffe://tidegate"
MAX_NAMES: Final = 256
"""Most mapped names."""
MAX_NAME_CHARS: Final = 2048
"""Longest mapped name (the SPIFFE specification's bound)."""
_SHOWN_NAMES: Final = 4
_SHOWN_CHARS: Final = 120


class Peer(NamedTuple):
    """The names of a verified certificate; a peer without a certificate has none."""

    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = (*self.uris, *self.dns)
        shown = ", ".join(f"{name:.{_SHOWN_CHARS}}" for name in names[:_SHOWN_NAMES])
        return shown or "none"


class RoleTable:
    """Roles by name; see the module's rules.

    Args:
        names: Each role's names.
        speaks: Names and the ids for which they speak; ``*`` = all.
    """

    def __init__(
        self, names: Iterable[tuple[Role, str]], speaks: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._exact: dict[str, Roles] = {}
        self._below: list[tuple[str, Role]] = []
        self._speaks: dict[str, frozenset[str]] = {}
        for name, speaker in speaks:
            key = name if _is_uri(name) else name.lower()
            self._speaks[key] = self._speaks.get(key, frozenset()) | {speaker}
        for role, name in names:
            if _is_uri(name) and name.endswith("/*"):
                self._below.append((name[:-1], role))
            else:
                key = name if _is_uri(name) else name.lower()
                self._exact[key] = self._exact.get(key, NONE) | {role}

    def of(self, peer: Peer) -> Roles:
        """Return a peer's roles."""
        found: set[Role] = set()
        for uri in peer.uris:
            found |= self._exact.get(uri, NONE) if _is_uri(uri) else NONE
            found.update(role for above, role in self._below if uri.startswith(above))
        for name in peer.dns:
            if not _is_uri(name):
                found |= self._exact.get(name.lower(), NONE)
        return frozenset(found)

    def ids(self, peer: Peer, role: Role) -> frozenset[str]:
        """Return the ids that a peer's certificate names for a role; ``*`` = all (rule 5)."""
        found: set[str] = set()
        for uri in peer.uris:
            found |= self._speaks.get(uri, frozenset())
            for above, below in self._below:
                if below == role and uri.startswith(above):
                    found.add(uri[len(above) :])
        for name in peer.dns:
            found |= self._speaks.get(name.lower(), frozenset())
        return frozenset(found)

    def not_named(self, peer: Peer, role: Role, wanted: str) -> str | None:
        """Return why a peer may not speak for an id, in one sentence; ``None`` = it may.

        A worker of a picker, ``ID.wN``, is named by the picker's id.

        Args:
            peer: The peer.
            role: ``reporter`` or ``picker``.
            wanted: Id of the replica, or of the picker.
        """
        ids = self.ids(peer, role)
        picker, dot, number = wanted.rpartition(".w")
        if wanted in ids or "*" in ids or (dot and number.isdecimal() and picker in ids):
            return None
        named = f"the {role} {', '.join(sorted(ids)[:_SHOWN_NAMES])}" if ids else f"no {role}"
        example = peer.uris[0] if peer.uris else peer.dns[0] if peer.dns else "NAME"
        return (
            f"{wanted:.120}: this certificate ({peer}) names {named}; make it one of"
            f" {TRUST_DOMAIN}/{role}/{wanted:.120}, or give --speaks {example:.120}={wanted:.120}"
        )


USUAL: Final = tuple(
    (role, name)
    for role in get_args(Role)
    for name in (f"{TRUST_DOMAIN}/{role}", f"{TRUST_DOMAIN}/{role}/*")
)
"""Names if none are given."""


def parse(given: str) -> tuple[Role, str]:
    """Return role and name of ``ROLE=NAME``.

    Raises:
        ValueError: The role is unknown, or the name is empty or too long.
    """
    role, equals, name = given.partition("=")
    if not equals or role not in EVERY:
        raise ValueError(f"'{given:.80}' is no ROLE=NAME; roles are {', '.join(get_args(Role))}")
    if not name or len(name) > MAX_NAME_CHARS or not name.isascii() or " " in name:
        raise ValueError(
            f"'{given:.80}': the name is a URI (spiffe://...) or a DNS name of at most"
            f" {MAX_NAME_CHARS} characters"
        )
    if "*" in name and not (_is_uri(name) and name.endswith("/*") and name.count("*") == 1):
        raise ValueError(f"'{given:.80}': only a URI may end in /*, for all names below it")
    return role, name


def parse_speaker(given: str) -> tuple[str, str]:
    """Return name and id of ``NAME=ID``.

    Raises:
        ValueError: One of them is empty, too long or has a space.
    """
    name, equals, speaker = given.rpartition("=")
    if not equals or not speaker or len(speaker) > MAX_NAME_CHARS or " " in given:
        raise ValueError(
            f"'{given:.80}' is no NAME=ID: a name in certificates, and the id of a replica or a"
            " picker for which it speaks, or * for all"
        )
    parse(f"reporter={name}")
    return name, speaker


def table(given: Iterable[str], speaks: Iterable[str] = ()) -> RoleTable:
    """Return the table of ``ROLE=NAME`` texts; if there are none, the usual names.

    Args:
        given: The roles of names.
        speaks: The ids of names, ``NAME=ID``.

    Raises:
        ValueError: A text is wrong, or there are more than ``MAX_NAMES`` of either.
    """
    parsed, speakers = [parse(each) for each in given], [parse_speaker(each) for each in speaks]
    if max(len(parsed), len(speakers)) > MAX_NAMES:
        raise ValueError(f"at most {MAX_NAMES} names can be mapped to roles, or to ids")
    return RoleTable(parsed or USUAL, speakers)


@dataclass(frozen=True, slots=True)
class MethodRoles:
    """Which roles may call which methods; see the module's rules."""

    methods: Mapping[str, Roles]
    """Roles by path: ``/package.Service/Method``, or that of a page."""

    def refusal(self, path: str, peer: Peer, held: Roles) -> str | None:
        """Return why a call is refused, in one sentence; ``None`` if it is allowed."""
        needed = self.methods.get(path, NONE)
        if held & needed:
            return None
        if not held:
            return f"the names of this peer's certificate ({peer}) have no role; map one by --role"
        if not needed:
            return f"{path:.120} is not served here"
        roles = " or ".join(sorted(needed))
        return (
            f"{path:.120} needs the role {roles}; this peer ({peer}) is {', '.join(sorted(held))}"
        )


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Roles of peers on one port, and what they may call."""

    access: MethodRoles
    table: RoleTable
    anonymous: Roles = field(default=NONE)
    """Roles of peers without a certificate, where none is required."""

    def roles(self, peer: Peer) -> Roles:
        """Return a peer's roles."""
        if not peer.uris and not peer.dns:
            return self.anonymous
        return self.table.of(peer)

    def allowed(self, peer: Peer) -> frozenset[str]:
        """Return the paths that a peer may call."""
        held = self.roles(peer)
        return frozenset(path for path, needed in self.access.methods.items() if held & needed)

    def refusal(self, path: str, peer: Peer) -> str | None:
        """Return why a call is refused, in one sentence; ``None`` if it is allowed."""
        return self.access.refusal(path, peer, self.roles(peer))


def _is_uri(name: str) -> bool:
    return "://" in name
