"""Requests to an API server over HTTP, with the credentials of the moment.

Rules:

1. Redirects are not followed, proxies of the environment are not used: they would get the token.
2. What is no answer of the statuses asked for is a refusal (``answers.refusal``). Of its body at
   most ``MAX_REFUSAL_BYTES`` are read.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp

from xds_server.applications.discovery.kubernetes.answers import (
    MAX_QUOTED,
    BadAnswerError,
    refusal,
    status,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from xds_server.applications.discovery.kubernetes.access import Access
    from xds_server.applications.discovery.kubernetes.answers import ResourceKind, Verb

CONNECT_S: Final = 3.0
ANSWER_S: Final = 30.0
"""Seconds until an answer begins."""
MAX_REFUSAL_BYTES: Final = 65_536
OK: Final = 200
_METHODS: Final = {"create": "POST", "update": "PUT", "delete": "DELETE"}
"""Of verbs that are no GET."""
_HEADERS: Final = {
    "Accept": "application/json",
    # A compressed answer has no bound before it is read.
    "Accept-Encoding": "identity",
    "User-Agent": "tidegate",
}


class ApiCall(NamedTuple):
    """What is asked for."""

    verb: Verb
    resource: ResourceKind
    namespace: str
    name: str = ""
    """Of one object; empty for all, and for one that is created."""
    statuses: tuple[int, ...] = (OK,)
    """Those that are no refusal."""


def session(connections: int) -> aiohttp.ClientSession:
    """Return a session of at most so many connections."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        connector=aiohttp.TCPConnector(limit=connections),
        headers=_HEADERS,
        auto_decompress=False,
    )


@contextlib.asynccontextmanager
async def answered(
    http: aiohttp.ClientSession, access: Access, asked: ApiCall, **options: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send a request; yield the answer if it is no refusal.

    Args:
        http: Sends it.
        access: The server and the credentials.
        asked: What is asked for.
        options: Of ``ClientSession.request``.

    Raises:
        ExpiredError: 410.
        RefusedError: Any other status than those asked for.
    """
    verb, resource, namespace, name, statuses = asked
    path = resource.path(namespace)
    options["headers"] = {**_authorization(access), **options.get("headers", {})}
    async with contextlib.AsyncExitStack() as stack:
        call = http.request(
            _METHODS.get(verb, "GET"),
            f"{access.url}{path}/{name}" if name else access.url + path,
            ssl=access.context if access.context is not None else True,
            server_hostname=access.server_name,
            allow_redirects=False,
            **options,
        )
        async with asyncio.timeout(ANSWER_S):  # a watch is answered at once, too
            answer = await stack.enter_async_context(call)
        if answer.status not in statuses:
            said = await _refusal_body(answer)
            after = answer.headers.get("Retry-After")
            raise refusal(verb, namespace, answer.status, said, access.url, after, resource)
        yield answer


async def body(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of an answer.

    Raises:
        BadAnswerError: It is larger than ``most`` bytes.
    """
    found = bytearray()
    async for chunk in answer.content.iter_any():
        found += chunk
        if len(found) > most:
            raise BadAnswerError(f"an answer is larger than {most} bytes")
    return bytes(found)


def reason(error: Exception) -> str:
    """Return why no answer came, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"[:MAX_QUOTED]
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error  # its own text has the address of an object
    return (str(error) or type(error).__name__)[:MAX_QUOTED]


def _authorization(access: Access) -> Mapping[str, str]:
    return {} if access.token is None else {"Authorization": f"Bearer {access.token}"}


async def _refusal_body(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    try:
        return status(await body(answer, MAX_REFUSAL_BYTES))
    except BadAnswerError:
        return {}
