"""What the history says of a publication."""

from __future__ import annotations

from typing import Literal

import pytest

from xds_server.control.operation import summary
from xds_server.protocol.publication import ClientProblem, PublicationOutcome

REFUSED = ClientProblem("e1", "NACKED", "RDS", "bad route")
LATE = ClientProblem("e2", "STALLED", "CDS", "has not acknowledged CDS in time")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            "done",
            "acknowledged by 2 of 4 clients in 9 ms; not by e1 (RDS: bad route); late: e2 (CDS)",
        ),
        ("abandoned", "refused by e1 (RDS: bad route); late: e2 (CDS)"),
    ],
)
def test_a_client_that_has_not_answered_in_time_is_late(
    state: Literal["done", "abandoned"], said: str
) -> None:
    """It has refused nothing, and may answer later."""
    assert summary(PublicationOutcome(state, 4, 2, (REFUSED, LATE), (), 0.009)) == said
