"""What the ADS port does not serve: other gRPC services, REST, and other resource types.

Rules:

1. A call of any other method ends with UNIMPLEMENTED and one sentence that says what to use. That
   covers the per-type services, ``Fetch*``, version 2 of the API, and REST over HTTP/2. gRPC
   closes HTTP/1.1 connections before any of our code runs.
2. A type URL that can name no resource of version 3 ends its stream with INVALID_ARGUMENT: a
   misspelled type would wait for ever.
3. Another type of Envoy's is not answered (X9), so that the Envoy's other types are served: it is
   recorded only.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import grpc

from tidegate_api.names import SHORT_TYPE
from xds_server.protocol.messages import ProtocolError
from xds_server.protocol.wire import ADS_SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.server.refusals import RefusedPeers

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
