"""The bounds on the page of transports are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_proc.server import growing
from ext_proc.server.h2 import held, host, late, limits, server
from ext_proc.server.service import FIRST_BODY_BYTES, MESSAGE_ROOM

PAGE = (Path(__file__).parents[3] / "docs/reference/transport.md").read_text()
MIB = 2**20


@pytest.mark.parametrize(
    "text",
    [
        f"Before pools are\nknown it is {(FIRST_BODY_BYTES + MESSAGE_ROOM) // MIB} MiB",
        f"| connections | {host.MAX_CONNECTIONS:,} | the oldest",
        f"| streams of a connection | {limits.MAX_STREAMS:,} |",
        f"{limits.STREAM_WINDOW // 1024} KiB a stream, {limits.CONNECTION_WINDOW // MIB} MiB a",
        f"{held.STREAM_BYTES // 1024} KiB a stream | {held.MIN_LIMIT // MIB} MiB, or two",
        f"from {int(held.REFUSE * 8)}/8 on",
        f"until {int(held.RELIEVED * 4)}/4 is left",
        f"| a message that has begun | {late.MESSAGE_S:.0f} s, and {late.MIN_RATE // MIB} s for",
        f"| a stream without a message | {late.FIRST_S:.0f} s |",
        f"| a frame that has begun | {late.MESSAGE_S:.0f} s,",
        f"Times are looked at every {late.LOOK_S:.0f} s.",
        f"| a peer that is gone, or reads nothing | {server.DEAD_S} s |",
        f"| connections | {growing.MAX_CONNECTIONS:,} | the new one",
        f"| open streams, of all connections | {growing.MAX_CALLS:,},",
        f"complete frames or not | {growing.IDLE_MS // 60_000} min |",
    ],
)
def test_a_bound_is_the_one_of_the_code(text: str) -> None:
    """A page that promises another bound than the code has is worse than none."""
    assert text in PAGE
