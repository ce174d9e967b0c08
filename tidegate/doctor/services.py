"""Running services: the control server, as ``tidegate status`` tells, and Envoy's admin page.

Source of Envoy's answers: ``envoy/admin/v3/server_info.proto`` and ``/stats?format=json``.
"""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import orjson

from tidegate.doctor.diagnosis import Diagnosis, Level, fault, risk
from xds_server.builds.features import OLDEST, lacking

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xds_server.builds.features import Build

ASK_S: Final = 5.0
LEAST_DRAIN_S: Final = 3_600
MOST_SKEW_S: Final = 5.0
_MAX_BYTES: Final = 4 * 2**20
_CONNECTED: Final = "control_plane.connected_state"
_BUILD: Final = re.compile(r"/(\d{1,3})\.(\d{1,3})\.(\d{1,3})")
_WORDS: Final = {"OUTAGE": Level.FAULT, "DEGRADED": Level.RISK}


class EnvoyFacts(NamedTuple):
    """What an Envoy tells about itself."""

    build: Build | None
    """Major, minor and patch number; ``None`` = another form."""
    drain_s: float | None
    immediate: bool
    """Its drain strategy is ``immediate``."""
    concurrency: int | None
    connected: bool | None
    """A control server is connected."""
    skew_s: float | None
    """Its clock less this machine's."""


def judge_status(data: Mapping[str, Any], server: str) -> Iterator[Diagnosis]:
    """Yield what a control server's status (``tidegate status -o json``) says is wrong."""
    level = _WORDS.get(data["verdict"] or "")
    if level is not None:
        for reason in data["reasons"] or [data["why"]]:
            yield Diagnosis(level, "the fleet", str(reason), "see `tidegate status`")
    kinds = {each["kind"] for each in data["clients"]}
    if "envoy" not in kinds:
        yield fault(
            server,
            "has no Envoy connected",
            "start Envoy with `tidegate envoy-bootstrap --xds HOST:PORT`, and look at its log",
        )
    if "picker" not in kinds:
        yield fault(
            server,
            "has no picker connected: Envoy balances by itself",
            "start `tidegate picker --xds HOST:PORT`, and look at its log",
        )
    for name, key in (("fleet file", "file_error"), ("store", "store_error")):
        if data[key]:
            yield fault(server, f"{name}: {data[key]}", "correct it; nothing else is changed")


async def read_envoy(address: str) -> EnvoyFacts:
    """Ask an Envoy's admin page.

    Raises:
        OSError: It cannot be reached, or does not answer within ``ASK_S``.
        ValueError: It answers otherwise than Envoy.
    """
    timeout = aiohttp.ClientTimeout(total=ASK_S)
    async with aiohttp.ClientSession(f"http://{address}", timeout=timeout) as session:
        try:
            info, date = await _json(session, "/server_info")
            stats, _ = await _json(session, f"/stats?format=json&filter=^{_CONNECTED}$")
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error
    return facts_of(info, stats, date, time.time())


async def _json(session: aiohttp.ClientSession, path: str) -> tuple[Any, str]:
    async with session.get(path, allow_redirects=False) as answer:
        return orjson.loads(await answer.content.read(_MAX_BYTES)), answer.headers.get("date", "")


def facts_of(info: Any, stats: Any, date: str, now: float) -> EnvoyFacts:
    """Return the facts of Envoy's answers.

    Args:
        info: Answer of ``/server_info``.
        stats: Answer of ``/stats``.
        date: Its ``date`` header; empty = none.
        now: Unix seconds of this machine.

    Raises:
        ValueError: They are not those of an Envoy.
    """
    try:
        options = info["command_line_options"]
        build = _build(info["version"])
        listed = {each["name"]: each["value"] for each in stats["stats"] if "name" in each}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("it answers otherwise than Envoy") from error
    connected = listed.get(_CONNECTED)
    return EnvoyFacts(
        build=build,
        drain_s=_seconds(options.get("drain_time")),
        immediate=options.get("drain_strategy") == "Immediate",
        concurrency=options.get("concurrency"),
        connected=None if connected is None else bool(connected),
        skew_s=_skew(date, now),
    )


def _build(told: str) -> Build | None:
    """Return the number of a version as Envoy tells it: ``hash/1.40.0/Clean/RELEASE/BoringSSL``."""
    found = _BUILD.search(told)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def _judge_build(about: str, build: Build) -> Iterator[Diagnosis]:
    told = ".".join(map(str, build))
    newer = 'install a newer one: `pip install "tidegate[envoy]"`'
    if build < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield risk(about, f"is {told}; none before {oldest} was tried", newer)
    for lost in sorted({each.lost for each in lacking(build)}):
        yield risk(about, f"is {told}, which does without {lost}", newer)


def _seconds(given: object) -> float | None:
    try:
        return float(str(given).removesuffix("s"))
    except ValueError:
        return None


def _skew(date: str, now: float) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except ValueError:
        return None


def judge_envoy(facts: EnvoyFacts, address: str, cpus: int) -> Iterator[Diagnosis]:
    """Yield what is wrong with an Envoy on a machine with so many CPUs."""
    about = f"Envoy at {address}"
    if facts.build is not None:
        yield from _judge_build(about, facts.build)
    if facts.connected is False:
        yield fault(
            about,
            "has no connection to a control server; it keeps what it was told last",
            "start `tidegate xds`, and compare its address with Envoy's bootstrap file",
        )
    if facts.drain_s is not None and facts.drain_s < LEAST_DRAIN_S:
        yield risk(
            about,
            f"cuts streams {facts.drain_s:g} s after a change of the listener",
            "start it with `--drain-time-s 86400`",
        )
    if not facts.immediate:
        yield risk(
            about,
            "closes drained connections gradually over the whole drain time",
            "start it with `--drain-strategy immediate`",
        )
    if facts.concurrency is not None and facts.concurrency > cpus:
        yield risk(
            about,
            f"runs {facts.concurrency} workers on {cpus} CPUs, and shares them with the picker",
            f"start it with `--concurrency {max(1, cpus - 1)}`",
        )
    if facts.skew_s is not None and abs(facts.skew_s) > MOST_SKEW_S:
        yield risk(
            about,
            f"has a clock {facts.skew_s:+.0f} s off this machine's: certificates and tokens may"
            " count as expired",
            "synchronise both clocks (`timedatectl set-ntp true`)",
        )
