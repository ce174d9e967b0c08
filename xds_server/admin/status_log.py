"""Logs when the verdict changes, so that the log alone tells when trouble began and ended.

Rules:

1. Each word that differs from the one before is logged with the weightiest reason.
2. The begin of each kind of reasons is logged, whatever the word, with the first of them. One that
   ended less than ``DAMPED`` looks before is not logged again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from xds_server.applications.traffic.verdict import Verdict, Word

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S: Final = 5.0
"""Seconds between two looks."""
DAMPED: Final = 12
"""Looks: a minute."""

_log = structlog.get_logger(__name__)


class StatusLog:
    """Compares each verdict with the one before; see the module's rules.

    Args:
        verdict: Returns the verdict; ``None`` = there is no fleet yet.
    """

    def __init__(self, verdict: Callable[[], Verdict | None]) -> None:
        self._verdict = verdict
        self._word = Word.OK
        self._looks = 0
        self._seen: dict[str, int] = {}
        """Number of the look at which a kind of reasons was seen last."""

    def look(self) -> None:
        """Log what has changed."""
        found = self._verdict()
        if found is None:
            return
        self._looks += 1
        if found.word is not self._word:
            self._tell(found)
        for kind, reasons in found.kinds.items():
            last = self._seen.get(kind)
            self._seen[kind] = self._looks
            if last is None or self._looks - last > DAMPED:
                _log.warning("status_reason", kind=kind, count=len(reasons), reason=reasons[0])

    def _tell(self, found: Verdict) -> None:
        told = {"status": str(found.word), "was": str(self._word), "why": found.why}
        if found.word is Word.OK:
            _log.info("status_changed", **told)
        else:
            _log.warning("status_changed", **told)
        self._word = found.word

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()
