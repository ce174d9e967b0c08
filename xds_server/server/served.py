"""What Envoys are served: all of their configuration, or clusters only (``tidegate xds --serve``).

Rules:

1. With ``clusters`` Envoys get clusters, endpoints, runtime layers and secrets, but no listeners,
   filters and routes: those are their operators'. Stages keep their order, and one in which nothing
   else differs passes at once. Pickers get the same as ever.
2. Requests for what is left out are not answered: an answer without resources would make an Envoy
   drop those that it has. The first stream of a node that sends one ends with INVALID_ARGUMENT and
   one sentence, which Envoy logs. The node's next streams stay, so that its endpoints are current.
   Operators see each of these nodes (``refusals``).
3. ``MAX_TOLD`` nodes are told at most; of further ones no stream ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidegate_api.names import EXTENSION_TYPE, LISTENER_TYPE, ROUTE_TYPE, SHORT_TYPE
from xds_server.protocol.messages import ProtocolError
from xds_server.server.unsupported import check_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.protocol.publication import Plan, Stage
    from xds_server.protocol.snapshot import Snapshot
    from xds_server.server.connection import AdsConnection
    from xds_server.server.refusals import RefusedPeers
    from xds_server.settings import Serve

MAX_TOLD: Final = 4096
"""Most nodes that are remembered as told."""

_FRONT: Final = frozenset({LISTENER_TYPE, EXTENSION_TYPE, ROUTE_TYPE})


class ServedTypes:
    """Keeps to what is served; see the module's rules.

    Args:
        serve: What Envoys are served.
        refusals: Where requests that are not answered are recorded.
    """

    def __init__(self, serve: Serve, refusals: RefusedPeers) -> None:
        self._left_out = _FRONT if serve == "clusters" else frozenset[str]()
        self._refusals = refusals
        self._told: set[str] = set()

    def plan(self, plan: Plan) -> Plan:
        """Return the plan of what is served."""
        if not self._left_out:
            return plan
        return lambda: [self._stage(each) for each in (plan() if callable(plan) else plan)]

    def check(self, connection: AdsConnection, type_url: str) -> None:
        """Record a type that gets no answer; called for each type once per stream.

        Raises:
            ProtocolError: The stream must end: the URL can name no resource, or its client has not
                been told yet that the type is not served.
        """
        reason = check_type(type_url)
        if connection.audience == "envoy" and type_url in self._left_out:
            reason = self._sentence(type_url)
            if connection.node not in self._told and len(self._told) < MAX_TOLD:
                self._told.add(connection.node)
                raise ProtocolError(reason)
        if reason:
            self._refusals.note(connection.peer, connection.node, reason)

    def _sentence(self, type_url: str) -> str:
        name = SHORT_TYPE[type_url]
        return (
            f"{name} is not served: this control server serves clusters only (--serve clusters); "
            f"remove {name} from this Envoy's bootstrap; its listeners and routes must be its own"
        )

    def _stage(self, stage: Stage) -> Stage:
        if stage.audience != "envoy":
            return stage
        return replace(
            stage,
            snapshot=self._without(stage.snapshot),
            past=tuple(map(self._without, stage.past)),
            edit=None if stage.edit is None else self._edited(stage.edit),
        )

    def _edited(self, edit: Callable[[Snapshot], Snapshot]) -> Callable[[Snapshot], Snapshot]:
        return lambda snapshot: self._without(edit(snapshot))

    def _without(self, snapshot: Snapshot) -> Snapshot:
        return snapshot.without(self._left_out)
