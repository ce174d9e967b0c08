"""The operator's token of the command line: from the environment or a file, never from an argument.

Arguments are in the shell's history and in everybody's list of processes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from tidegate.terminal.errors import CliError
from tidegate_common.tls.binds import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TOKEN: Final = "TIDEGATE_TOKEN"  # noqa: S105 - the variable's name
TOKEN_FILE: Final = "TIDEGATE_TOKEN_FILE"  # noqa: S105 - the variable's name
MAX_BYTES: Final = 4096


def token(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token; ``None`` = there is none.

    Raises:
        CliError: Its file cannot be read, or it is no word of printable ASCII characters.
    """
    given, file = environment.get(TOKEN, ""), environment.get(TOKEN_FILE, "")
    source = TOKEN if given else file
    if not source:
        return None
    if not given:
        try:
            with Path(file).open("rb") as opened:
                given = opened.read(MAX_BYTES).decode("ascii", "replace")
        except OSError as error:
            raise CliError(f"cannot read {file} ({TOKEN_FILE}): {error.strerror}") from error
    given = given.strip()
    if not given.isascii() or not given.isprintable() or not given or " " in given:
        raise CliError(f"{source} contains no token; `tidegate tokens` makes one")
    return given


def with_token(channel: grpc.Channel, server: str, *, encrypted: bool) -> grpc.Channel:
    """Return a channel whose calls present the token, if there is one.

    Args:
        channel: The channel.
        server: Its address.
        encrypted: It is TLS.

    Raises:
        CliError: The token cannot be read, or others could read it on its way.
    """
    found = token()
    if found is None:
        return channel
    if not encrypted and not is_local(server):
        raise CliError(
            f"a token is not sent to {server} without TLS, where others could read it; give"
            " --tls-cert, --tls-key and --tls-ca, or use a tunnel to its own machine"
        )
    return grpc.intercept_channel(channel, _Bearer(found))


class _Details(grpc.ClientCallDetails):
    """Details of a call with further metadata."""

    def __init__(self, of: Any, token: str) -> None:
        self.method = of.method
        self.timeout = of.timeout
        self.metadata = (*(of.metadata or ()), ("authorization", f"Bearer {token}"))
        self.credentials = of.credentials
        self.wait_for_ready = of.wait_for_ready
        self.compression = of.compression


class _Bearer(grpc.UnaryUnaryClientInterceptor):
    """Adds the token to each call."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Make the call with the token."""
        return continuation(_Details(client_call_details, self._token), request)
