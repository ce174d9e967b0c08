"""Derives each worker's settings from the picker's. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.settings import PickerSettings

MAX_PORT: Final = 65_535


class PlanError(ValueError):
    """The workers cannot be assigned addresses; the message names the option and the remedy."""


def picker_of(worker: str, number: int) -> str:
    """Return the id of the picker whose worker has this id and number."""
    return worker.removesuffix(f".w{number}")


def plan(settings: PickerSettings, *, from_file: bool = False) -> list[PickerSettings]:
    """Return the settings of each worker; those of a single-process picker are unchanged.

    If several addresses are listed, each worker gets one of them. If one is given, the first worker
    gets it, and the others get the ports after it.

    Args:
        settings: The picker's settings.
        from_file: It reads the fleet file itself, so its seed of hashes is its own.

    Raises:
        PlanError: The addresses do not suffice or overlap, or it cannot be in a group.
    """
    if from_file and settings.group_listen is not None:
        raise PlanError(
            "--group-listen: pickers of one group have one control server, which gives them the"
            " seed of prompt hashes; give --xds in place of --fleet"
        )
    count = settings.workers
    listen = spread("listen", settings.listen, count)
    metrics = spread("metrics", settings.metrics, count)
    advertise = (
        [None] * count
        if settings.advertise is None
        else spread("advertise", settings.advertise, count)
    )
    group = (
        [None] * count
        if settings.group_listen is None
        else spread("group-listen", settings.group_listen, count)
    )
    both = [*listen, *metrics, *filter(None, group)]
    twice = sorted({each for each in both if both.count(each) > 1 and not each.endswith(":0")})
    if twice:
        raise PlanError(
            f"--listen and --metrics: {twice[0]} would be used twice by {count} workers;"
            " give them ports that are further apart"
        )
    if count == 1:
        return [settings]
    return [
        settings.model_copy(
            update={
                "workers": 1,
                "id": f"{settings.id}.w{number}",
                "listen": listen[number],
                "metrics": metrics[number],
                "advertise": advertise[number],
                "group_listen": group[number],
                "health_port": settings.health_port and settings.health_port + number,
            }
        )
        for number in range(count)
    ]


def spread(option: str, given: str, count: int) -> list[str]:
    """Return an address for each worker from what an option says: one for each, or the first.

    Raises:
        PlanError: They do not suffice, or have no port.
    """
    addresses = given.split(",")
    if len(addresses) == count:
        return addresses
    if len(addresses) > 1:
        raise PlanError(
            f"--{option} {given}: {len(addresses)} addresses for {count} workers; list one for"
            " each, or the first one alone"
        )
    host, _, port = given.rpartition(":")
    first = int(port) if port.isascii() and port.isdigit() else 0
    if first == 0 or first + count - 1 > MAX_PORT:
        raise PlanError(
            f"--{option} {given}: {count} workers need {count} consecutive, fixed ports;"
            f" choose a port from 1 to {MAX_PORT + 1 - count}"
        )
    return [f"{host}:{first + number}" for number in range(count)]
