"""From the settings of a picker to those of each of its workers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.settings import PickerSettings

MAX_PORT: Final = 65_535


class PlanError(ValueError):
    """The workers cannot be given addresses; the text names the option and says what to do."""


def plan(settings: PickerSettings) -> list[PickerSettings]:
    """Return the settings of each worker; those of a picker of one process as they are.

    Where several addresses are listed, each worker has one of them. Where one is given, the first
    worker has it, and the others the ports after it.

    Raises:
        PlanError: The addresses do not suffice or meet.
    """
    count = settings.workers
    listen = _spread("listen", settings.listen, count)
    metrics = _spread("metrics", settings.metrics, count)
    advertise = (
        [None] * count
        if settings.advertise is None
        else _spread("advertise", settings.advertise, count)
    )
    both = [*listen, *metrics]
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
            }
        )
        for number in range(count)
    ]


def _spread(option: str, given: str, count: int) -> list[str]:
    addresses = given.split(",")
    if len(addresses) == count:
        return addresses
    if len(addresses) > 1:
        raise PlanError(
            f"--{option} {given}: {len(addresses)} addresses for {count} workers; list one for"
            " each, or the first one alone"
        )
    host, _, port = given.rpartition(":")
    first = int(port)
    if first == 0 or first + count - 1 > MAX_PORT:
        raise PlanError(
            f"--{option} {given}: {count} workers need {count} ports from a fixed one on;"
            f" choose a port from 1 to {MAX_PORT + 1 - count}"
        )
    return [f"{host}:{first + number}" for number in range(count)]
