"""What the ADS port does not serve: other gRPC services, REST, other types; and types left out.

Rules:

1. A call of any other method ends with UNIMPLEMENTED and one sentence that says what to use. That
   covers the per-type services, ``Fetch*``, version 2 of the API, and REST over HTTP/2. gRPC
   closes HTTP/1.1 connections before any of our code runs.
2. A type URL that can name no resource of version 3 ends its stream with INVALID_ARGUMENT: a
   misspelled type would wait for ever.
3. Another type of Envoy's is not answered (X9), so that the Envoy's other types are served: it is
   recorded only.
4. With ``tidegate xds --serve clusters`` Envoys get clusters, endpoints, runtime layers and
   secrets, but no listeners, filters and routes: those are their operators'. Stages keep their
   order, and one in which nothing else differs passes at once. Pickers get the same as ever.
5. Requests for what is left out are not answered: an answer without resources would make an Envoy
   drop those that it has. The first stream of a node that sends one ends with INVALID_ARGUMENT and
   one sentence, which Envoy logs. The node's next streams stay, so that its endpoints are current.
   Operators see each of these nodes (``refusals``).
6. ``MAX_TOLD`` nodes are told at most; of further ones no stream ends.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import grpc

from tidegate_api.names import EXTENSION_TYPE, LISTENER_TYPE, ROUTE_TYPE, SHORT_TYPE
from xds_server.protocol.messages import ProtocolError
from xds_server.protocol.wire import ADS_SERVICE

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


_MAX_SHOWN: Final = 120
"""Most characters of a peer's words in a sentence."""

_PREFIX: Final = "type.googleapis.com/"
_VERSION_3: Final = ("envoy.", "xds.", "tidegate.")


def refused_method(method: str, address: str) -> str:
    """Return what to tell a peer that calls a method which is not served.

    Args:
        method: The called method, ``/service/name``, or the path of a REST call.
        address: Where ADS is served.
    """
    use = (
        f"use ADS at {address} (StreamAggregatedResources or DeltaAggregatedResources of "
        f"{ADS_SERVICE}; in Envoy 'ads: {{}}' as config source)"
    )
    service, _, name = method.removeprefix("/").rpartition("/")
    if method.startswith(("/v2/discovery:", "/v3/discovery:")):
        return f"REST is not served ({method[:_MAX_SHOWN]}); {use}"
    if service.startswith("envoy.") and (".v2." in service or service.endswith(".v2")):
        return f"version 2 of the xDS API is not served ({method[:_MAX_SHOWN]}); {use}"
    if name.startswith("Fetch"):
        return f"polling is not served ({method[:_MAX_SHOWN]}); {use}"
    if service.startswith("envoy.service."):
        return f"there is no service per resource type ({method[:_MAX_SHOWN]}); {use}"
    return f"{method[:_MAX_SHOWN]} is not served here; {use}"


def check_type(type_url: str) -> str:
    """Return why a type gets no answer; empty if it is served.

    Raises:
        ProtocolError: The URL can name no resource of version 3.
    """
    if type_url in SHORT_TYPE or not type_url:
        return ""  # the protocol layer refuses an empty one
    shown, message = type_url[:_MAX_SHOWN], type_url.removeprefix(_PREFIX)
    known = {url.removeprefix(_PREFIX): url for url in SHORT_TYPE}
    served = ", ".join(SHORT_TYPE.values())
    wrong = type_url == message or not message.startswith(_VERSION_3) or ".v2." in message
    close = difflib.get_close_matches(message[:_MAX_SHOWN], known, 1, 0.95 if not wrong else 0.6)
    if wrong or close or message.startswith(("envoy.api.", "tidegate.")):
        hint = f"did you mean {known[close[0]]}?" if close else f"served are {served}"
        raise ProtocolError(f"'{shown}' is no resource type of xDS v3; {hint}")
    return f"requests for {shown} are not answered; served are {served}"


class Unsupported(grpc.GenericRpcHandler):
    """Refuses all methods that no other handler serves.

    Args:
        address: Returns where ADS is served.
        refusals: Where refusals are recorded.
    """

    def __init__(self, address: Callable[[], str], refusals: RefusedPeers) -> None:
        self._address = address
        self._refusals = refusals

    def service(self, details: Any) -> Any:
        """Return a handler that refuses the call."""
        reason = refused_method(str(details.method), self._address())

        async def refuse(_: Any, context: Any) -> None:
            self._refusals.note(context.peer(), "", reason)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, reason)

        return grpc.stream_stream_rpc_method_handler(refuse)
