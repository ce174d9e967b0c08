"""Runs a picker, or one of its workers, and turns what keeps it from starting into an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from ext_proc.app import Picker
from ext_proc.packages import PackageError, load_policies
from ext_proc.settings import EXIT_USAGE, AddressError, MissingExtraError
from tidegate_common import logs
from tidegate_common.tls.files import TlsError

if TYPE_CHECKING:
    from ext_proc.control.source import PoolSource
    from ext_proc.settings import PickerSettings
    from ext_proc.workers.bus import WorkerPlace

_log = structlog.stdlib.get_logger("ext_proc")


async def run_picker(
    settings: PickerSettings,
    place: WorkerPlace | None = None,
    source: PoolSource | None = None,
) -> int:
    """Run a picker until SIGTERM or SIGINT.

    Args:
        settings: The picker's settings.
        place: This process's place among the workers of one picker. A worker also stops at the
            end of its standard input, because its parent process is gone.
        source: Where its pools come from; ``None`` = the control server.

    Returns:
        The exit code: 0 after a requested stop, 1 after a crash of a part, 2 where an address
        cannot be bound, an extra is missing or a package's policy cannot be taken.
    """
    logs.configure(settings.log_format, settings.log_level)
    try:
        load_policies()
        async with Picker(settings, place, source) as picker:
            return await picker.until_stopped()
    except (AddressError, MissingExtraError, PackageError, TlsError) as error:
        _log.error("cannot_start", reason=str(error))
        return EXIT_USAGE
