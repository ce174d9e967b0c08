"""The newest state of a shared history that a server has read, in a file of its ``--state`` folder.

A server that starts again thus refuses an older history, as of a restored backup or an empty store,
like one that runs. The file is not flushed to disk: after a loss of power it may be of an earlier
change. One that cannot be read, or written, is told in the log and stops nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.fleet.stored.epochs import HistoryMark

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "seen.json"

_log = structlog.get_logger(__name__)


class SeenFile:
    """Keeps a mark; see the module's docstring. Calls block.

    Args:
        folder: Where the file is; ``None`` = no mark outlives the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        self._fault = ""

    def read(self) -> HistoryMark:
        """Return the mark; that of nothing if there is none."""
        if self._path is None:
            return HistoryMark()
        try:
            of = json.loads(self._path.read_text())
            return HistoryMark(int(of["epoch"]), int(of["number"]))
        except FileNotFoundError:
            return HistoryMark()
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("seen_not_read", file=str(self._path), error=str(error))
            return HistoryMark()

    def write(self, mark: HistoryMark) -> None:
        """Keep a mark in place of the one before."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(mark._asdict()))
            fresh.replace(self._path)
            self._fault = ""
        except OSError as error:
            if not self._fault:
                _log.warning("seen_not_written", file=str(self._path), error=str(error))
            self._fault = str(error)
