"""Continuous changes, kills and clients of every bad kind fail no request and cut no stream."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack

import pytest

from support.ads_peers import AdsPeer, Deaf, Flapping, Mute, Refusing, Slow
from support.crowd import CONTROL, ENVOYS, PICKERS, Crowd
from support.crowd_kills import Kills, Line
from support.crowd_operators import NEWEST_S, Lag, Operators
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.control.fleet_control import FALLBACK_AUTHOR
from xds_server.protocol.gate.quarantine import LIMIT
from xds_server.protocol.publication import STAGE_DEADLINE_S

CHANGES = int(os.environ.get("TIDEGATE_STORM_CHANGES", "60"))
"""Number of changes; from 300 on it is the long form, of several minutes."""
LONG = CHANGES >= 300
SEED = int(os.environ.get("TIDEGATE_STORM_SEED", "20"))
STREAM_S = 120.0 if LONG else 15.0
PAUSES_S = (0.0, 0.0, 0.2, 0.6, 2.5) if LONG else (0.0, 0.0, 0.1, 0.3, 0.5)

pytestmark = [
    pytest.mark.timeout(60 + 6 * CHANGES),
    pytest.mark.usefixtures("demo_extra"),
]


def clients(ads: str, rng: random.Random) -> tuple[list[AdsPeer], list[AdsPeer]]:
    """Return correct clients, and those of every other kind."""
    watches = [
        AdsPeer(ads, f"watch-{kind}-{variant}", kind, variant)
        for kind in ("envoy", "picker")
        for variant in ("delta", "sotw")
    ]
    bad = [
        Deaf(ads, "deaf-envoy", "envoy", "delta"),
        Deaf(ads, "deaf-picker", "picker", "sotw"),
        Mute(ads, "mute-envoy", "envoy", "sotw"),
        Mute(ads, "mute-picker", "picker", "delta"),
        Refusing(ads, "refusing-envoy", "envoy", "delta"),
        Refusing(ads, "refusing-picker", "picker", "sotw"),
        Refusing(ads, "choosy-envoy", "envoy", "sotw", first=True),
        Slow(ads, "slow-envoy", "envoy", "delta", rng=rng),
        Slow(ads, "slow-picker", "picker", "sotw", rng=rng),
        Flapping(ads, "flapping-envoy", "envoy", "sotw", rng=rng),
        Flapping(ads, "flapping-picker", "picker", "delta", rng=rng),
        Mute(ads, "envoy-1", "envoy", "delta"),  # a twin of an Envoy
        AdsPeer(ads, "picker-1", "picker", "sotw"),  # a twin of a picker
    ]
    return watches, bad


def plan(rng: random.Random) -> dict[int, str]:
    """Return which process is killed before which change."""
    each = [CONTROL, "envoy-2", PICKERS[0]]
    if not LONG:
        return {CHANGES * (n + 1) // 4: name for n, name in enumerate(each)}
    names = [*ENVOYS, CONTROL, CONTROL, *PICKERS]
    return {number: rng.choice(names) for number in range(20, CHANGES - 20, 25)}


async def newest(crowd: Crowd, watches: list[AdsPeer], lag: Lag) -> list[tuple[float, float]]:
    """Make a last change; return the seconds until each has it, with the lag.

    Envoys and pickers that are waited for with good reason, as clusters warm, answer before it.
    """
    await crowd.acknowledged()
    weight = 7919
    found = [watch.once(lambda peer: peer.weighs("llm", weight)) for watch in watches]
    fleet = await crowd.fleet()
    variant = fleet["pools"][0]["variants"][0]["name"]
    request = api.SetWeightsRequest(pool="llm", weights={variant: weight})
    began = time.monotonic()
    await crowd.operator.SetWeights(request)
    async with asyncio.timeout(60):
        times = await asyncio.gather(*found)
    return [(at - began, lag.between(began, at)) for at in times]


async def test_no_request_fails_and_no_stream_is_cut_in_a_crowd(tmp_path) -> None:
    """X45 and others: with 2 Envoys, 2 pickers and clients that hold a control server up."""
    rng = random.Random(SEED)
    lag = Lag()
    async with AsyncExitStack() as exit_, Crowd(tmp_path, STREAM_S) as crowd:
        measuring = asyncio.create_task(lag.run())
        exit_.callback(measuring.cancel)
        watches, bad = clients(crowd.ads, rng)
        for peer in (*watches, *bad):
            await exit_.enter_async_context(peer)
        lines = {envoy: Line(crowd, envoy, STREAM_S) for envoy in ENVOYS}
        for line in lines.values():
            await exit_.enter_async_context(line.flow)
            await exit_.enter_async_context(line.talks)
        operators = Operators(crowd, watches, lag, rng)
        kills, planned = Kills(crowd, lines, operators), plan(rng)
        for number in range(CHANGES):
            if number in planned:
                await kills.kill(planned[number])
            if number == CHANGES * 6 // 10:
                for line in lines.values():
                    line.talks.last = True
            await operators.change()
            await asyncio.sleep(rng.choice(PAUSES_S))
        await kills.back()
        await operators.settle()
        # Until then those that have never answered are waited for, with anything but drains.
        await asyncio.sleep(max(0.0, kills.started + STAGE_DEADLINE_S + 1.0 - time.monotonic()))
        last_s = await newest(crowd, watches, lag)
        for line in lines.values():
            await line.talks.finish()
            assert not line.wrong, line.envoy
            assert line.talks.whole
            assert line.flow.answered > 5 * CHANGES
        revisions = await crowd.operator.ListRevisions(api.ListRevisionsRequest(limit=10_000))
        backs = [each for each in revisions.revisions if each.author == FALLBACK_AUTHOR]
        made = f"{operators.made} {kills.made} {len(backs)} {operators.drains_s} {last_s}"
        # Each life of the control server learns anew whose refusals count for nothing.
        refusing = [peer for peer in bad if isinstance(peer, Refusing) and peer.kind == "envoy"]
        assert len(backs) <= LIMIT * len(refusing) * (1 + kills.made[CONTROL])
        assert operators.drains_s
        assert all(took - lagged <= bound for took, lagged, bound in operators.drains_s), made
        assert max(took - lagged for took, lagged in last_s) <= NEWEST_S, made
        assert len(operators.made) == len(operators.verbs), made
