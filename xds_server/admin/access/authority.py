"""Decides who a caller of the admin API is.

Rules:

1. A token, if there is one, says who calls; one that is not valid ends the call, whatever else the
   caller could prove.
2. Otherwise the OS user says it on a Unix socket, and the certificate over TLS.
3. On a port without TLS nobody is known. Without a token file all its callers are ``anonymous`` and
   have the role admin, so such a port belongs on loopback; with one, a token is needed.
4. On a Unix socket the user of the server and root are admins. Who else may open it, as a member of
   its group, has the role that is given to that user by name, or else operator.
5. A peer that presents wrong tokens is refused after a while (``Failures``), whatever it presents.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import grpc

from tidegate_common.tls.roles import NONE, Role, RoleTable
from xds_server.admin.access.caller import ANONYMOUS, CallEnded, Caller, CallOrigin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tidegate_common.tls.roles import Roles
    from xds_server.admin.access.tokens import Tokens

MAX_HEADER_CHARS: Final = 512
"""Longest ``authorization`` that is looked at."""
_ADMIN: Final[Roles] = frozenset({"admin"})
_OPERATOR: Final[Roles] = frozenset({"operator"})

MAX_FAILURES: Final = 10
WINDOW_S: Final = 60.0
MAX_PEERS: Final = 1024


class Authority:
    """Who calls; see the module's rules.

    Args:
        clock: Monotonic seconds.
        owner: User id of the server.
        table: Roles by names in certificates; ``None`` = there is no TLS.
        tokens: The tokens; ``None`` = none are taken.
        users: Roles by OS user.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        owner: int,
        table: RoleTable | None = None,
        tokens: Tokens | None = None,
        users: Mapping[str, Role] | None = None,
    ) -> None:
        self._failures = Failures(clock)
        self._owner = owner
        self._table = table
        self._tokens = tokens
        self._users = users or {}

    def caller(self, seen: CallOrigin) -> Caller:
        """Return who calls.

        Raises:
            CallEnded: It is not known, or has failed too often.
        """
        if seen.authorization is not None:
            return self._by_token(seen, seen.authorization)
        if seen.user is not None:
            return Caller(seen.address, seen.user_name, "user", self._roles_of(seen))
        if seen.peer.uris or seen.peer.dns:
            roles = NONE if self._table is None else self._table.of(seen.peer)
            return Caller(seen.address, str(seen.peer), "certificate", roles)
        if self._tokens is None and not seen.encrypted:
            return Caller(seen.address, ANONYMOUS, "nobody", _ADMIN)
        if self._tokens is None:
            raise CallEnded(
                grpc.StatusCode.PERMISSION_DENIED, "this peer has no certificate, thus no role"
            )
        raise CallEnded(
            grpc.StatusCode.UNAUTHENTICATED,
            "a token is needed: give it in TIDEGATE_TOKEN, or its file in TIDEGATE_TOKEN_FILE",
        )

    def _roles_of(self, seen: CallOrigin) -> Roles:
        if seen.user is None:
            return NONE
        if seen.user.uid in {0, self._owner}:
            return _ADMIN
        role = self._users.get(seen.user_name)
        return _OPERATOR if role is None else frozenset({role})

    def _by_token(self, seen: CallOrigin, authorization: str) -> Caller:
        if self._tokens is None:
            raise CallEnded(
                grpc.StatusCode.UNAUTHENTICATED,
                "no tokens are taken here; the server takes them with --admin-tokens",
            )
        peer = _key(seen)
        if self._failures.blocked(peer):
            raise CallEnded(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"too many wrong tokens; the next one is looked at in {WINDOW_S:g} s",
            )
        scheme, _, token = authorization[:MAX_HEADER_CHARS].partition(" ")
        held = self._tokens.holder(token.strip() if scheme.lower() == "bearer" else "")
        if held is None:
            self._failures.note(peer)
            raise CallEnded(
                grpc.StatusCode.UNAUTHENTICATED, "the token is not valid, or not any more"
            )
        return Caller(seen.address, held.name, "token", frozenset({held.role}))


def _key(seen: CallOrigin) -> str:
    """Return what failures are counted by."""
    if seen.user is not None:
        return f"uid {seen.user.uid}"
    if seen.peer.uris or seen.peer.dns:
        return str(seen.peer)
    return seen.host


class Failures:
    """Failures by peer.

    Rules:

    1. After ``MAX_FAILURES`` failures within ``WINDOW_S`` a peer is refused without a look at what
       it presents, until ``WINDOW_S`` after the last of them.
    2. At most ``MAX_PEERS`` are remembered; a further one replaces the one whose last failure is
       the oldest.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def note(self, peer: str) -> None:
        """Record a failure of a peer."""
        times = self._known.pop(peer, None)
        if times is None:
            times = deque(maxlen=MAX_FAILURES)
            if len(self._known) >= MAX_PEERS:
                self._known.popitem(last=False)
        times.append(self._clock())
        self._known[peer] = times

    def blocked(self, peer: str) -> bool:
        """Return whether a peer is refused."""
        times = self._known.get(peer)
        if times is None:
            return False
        now = self._clock()
        if now - times[-1] >= WINDOW_S:
            del self._known[peer]
            return False
        return len(times) == MAX_FAILURES and times[-1] - times[0] < WINDOW_S
