"""A picker with two faults, for tests that must find them: ``planted_picker.py ARGUMENTS``.

It gives each chunk of a duplex stream back twice, and lets sequences be read again.
"""

from __future__ import annotations

import runpy
from typing import Any

from ext_proc.exchange import machine
from tidegate_api.names import MAX_RETRIES_HEADER, READS_HEADER


def plant() -> None:
    """Replace what the state machine calls."""
    pass_through, write = machine.passed_through, machine.write_pick

    def twice(event: Any) -> Any:
        first = pass_through(event.changed(end_of_stream=False))
        return [*first, *pass_through(event)] if event.chunk else pass_through(event)

    def repeatable(*given: Any, **named: Any) -> Any:
        pick = write(*given, **named)
        kept = (MAX_RETRIES_HEADER, READS_HEADER)
        pick.headers = tuple(each for each in pick.headers if each[0] not in kept)
        return pick

    replaced: Any = machine
    replaced.passed_through, replaced.write_pick = twice, repeatable


if __name__ == "__main__":
    plant()
    runpy.run_module("ext_proc", run_name="__main__", alter_sys=True)
