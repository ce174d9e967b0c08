"""Waiting until a drained replica is safe to stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import grpc

from tidegate.cli.client import READ_TIMEOUT_S
from tidegate.terminal.errors import UNFINISHED, CliError
from tidegate_api.admin.v1.admin_pb2 import GetDrainRequest, GetDrainResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub

EVERY_S: Final = 0.5
"""Seconds between two questions."""
LEAST_S: Final = 0.9
"""Seconds that each question may take: ``--timeout`` is exceeded by less than one second."""


class StopAnswer(NamedTuple):
    """What is known of a replica that is to be stopped."""

    data: dict[str, Any]
    """For programs."""
    lines: list[str]
    """For people."""
    error: CliError | None
    """Why it is not safe to stop; ``None`` = it is."""


def until_safe(
    stub: AdminStub,
    endpoint: str,
    until: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> StopAnswer | None:
    """Ask until a replica is safe to stop, also over a restart of the control server.

    Args:
        stub: The admin API.
        endpoint: The replica, as in a drain.
        until: When to give up, in seconds of the clock; it is asked once in any case. An answer to
            the last question may come ``LEAST_S`` later.
        clock: Monotonic seconds.
        sleep: Waits for some seconds.

    Returns:
        What is known; ``None`` = the control server is older and cannot say.

    Raises:
        grpc.RpcError: The call fails for another reason than that the server is away.
    """
    began = clock()
    while True:
        answer = None
        bound = min(max(until - clock(), LEAST_S), READ_TIMEOUT_S)
        try:
            answer = stub.GetDrain(GetDrainRequest(endpoint=endpoint), timeout=bound)
        except grpc.RpcError as error:
            # The error of a unary call is also a grpc.Call; the type stubs do not declare it.
            code = cast("grpc.Call", error).code()
            if code is grpc.StatusCode.UNIMPLEMENTED:
                return None
            if code not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                raise
        left = until - clock()
        if (answer is not None and answer.safe) or left <= 0:
            return stopped(endpoint, answer, clock() - began)
        sleep(min(EVERY_S, left))


def stopped(endpoint: str, answer: GetDrainResponse | None, waited_s: float) -> StopAnswer:
    """Return an answer for people and programs.

    Args:
        endpoint: The replica, as in a drain.
        answer: The last answer; ``None`` = the control server gave none, so its counts are unknown.
        waited_s: Seconds since the first question.
    """
    reasons = ["the control server does not answer"] if answer is None else list(answer.waits_for)
    data = {
        "safe_to_stop": answer is not None and answer.safe,
        "waits_for": reasons,
        "in_flight": None if answer is None else answer.in_flight,
        "sequences": None if answer is None else answer.sequences,
        "pickers": None if answer is None else answer.pickers,
    }
    if answer is not None and answer.safe:
        by = f"{answer.pickers} picker" + ("s report" if answer.pickers != 1 else " reports")
        return StopAnswer(data, [f"safe to stop: {by} nothing in flight on {endpoint}"], None)
    error = CliError(
        f"{endpoint} is not safe to stop after {waited_s:.0f} s: {'; '.join(reasons)}. It goes on"
        " draining; repeat the command with a longer --timeout to wait on",
        UNFINISHED,
    )
    return StopAnswer(data, [], error)
