"""What the picker reads of a request is what a real Triton reads: both are asked about many.

A few thousand bodies in each run of all tests. ``TIDEGATE_DIFFERENTIAL_BODIES=100000`` asks about
more, ``TIDEGATE_DIFFERENTIAL_SEED`` about others; ``-rP`` shows the figures.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from support.readings.campaign import BEYOND_DEATHS, DEATHS, MOST_DEATHS, Result, Server, run
from support.readings.faults import FAULTS
from support.readings.laws import broken
from support.readings.picker import Picker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from support.readings.cases import Case


BODIES = int(os.environ.get("TIDEGATE_DIFFERENTIAL_BODIES", "3000"))
SEED = int(os.environ.get("TIDEGATE_DIFFERENTIAL_SEED", "1"))
KNOWN_SHARE = 0.95


@pytest.fixture(scope="module")
async def server(demo_extra: None) -> AsyncIterator[Server]:  # noqa: ARG001 - skips first
    """Run a Triton of its own: a request that is wrongly let pass may end it."""
    async with Server() as running:
        yield running


@pytest.fixture(scope="module")
async def result(server: Server) -> Result:
    """Ask picker and Triton once for all tests."""
    return await run(server, Picker(), SEED, BODIES)


async def test_picker_and_triton_read_the_same(result: Result, server: Server) -> None:
    """Model, version, id, sequence and size are equal, and what Triton accepts is not refused."""
    print(f"seed {SEED}: {result}; deaths {server.deaths}")  # noqa: T201 - the figures
    assert [str(failure) for failure in result.failures] == []


async def test_triton_survives_what_the_picker_lets_pass(result: Result, server: Server) -> None:
    """Deadly sizes are among the requests, disguised as well, and the picker refuses them.

    Not all of those that it cannot read to their end: they are sent to one replica once.
    """
    assert result.counts["deadly and refused"] > result.counts["bodies"] / 50
    assert result.counts[DEATHS] == result.counts[BEYOND_DEATHS]
    assert server.unexplained == []
    assert server.deaths < MOST_DEATHS, "not all deadly requests were sent"


async def test_nearly_all_readings_are_known(result: Result) -> None:
    """Of what Triton accepts within the bound; most of what is generated is accepted."""
    assert result.counts["accepted"] > result.counts["bodies"] / 2
    assert result.known_share >= KNOWN_SHARE


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_wrong_parser_is_found(result: Result, fault: Callable[[Case], Case]) -> None:
    """A planted fault breaks a law within the short form: the campaign is able to find it."""
    right, wrong = Picker(), Picker(fault)
    assert any(
        broken(wrong.read(told.case), told.answer)
        and not broken(right.read(told.case), told.answer)
        for told in result.told
    )
