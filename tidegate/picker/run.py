"""Runs a picker whose pools come from a fleet file."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ext_proc.__main__ import run as run_picker
from ext_proc.control.source import PoolSource
from ext_proc.settings import EXIT_USAGE
from xds_server.applications.discovery.file import FileFault, read_text
from xds_server.fleet.load import FleetError, load_text
from xds_server.fleet.model.fields import split_host_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.control.source import Take
    from ext_proc.settings import PickerSettings

SEED_VARIABLE: Final = "TIDEGATE_FLEET_SEED"
"""Environment variable by which the workers of a picker get one seed: a secret, so no argument."""
_SEED_BITS: Final = 64


def run(fleet: Path, settings: PickerSettings, dns: Sequence[str] = ()) -> int:
    """Run a picker until SIGTERM or SIGINT and return its exit code.

    Args:
        fleet: The fleet file; if it cannot be used at the start, the code is 2.
        settings: The picker's settings.
        dns: Name servers, ``ip:port``; those of ``/etc/resolv.conf`` if empty.
    """
    try:
        load_text(read_text(fleet), str(fleet))
        for each in dns:
            split_host_port(each)
    except (FileFault, FleetError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except ValueError as error:
        sys.stderr.write(f"--dns: {error}\n")
        return EXIT_USAGE
    os.environ[SEED_VARIABLE] = str(secrets.randbits(_SEED_BITS))
    with tempfile.TemporaryDirectory(prefix="tidegate-picker-") as folder:
        return run_picker(settings, source_of(fleet, Path(folder), dns))


def source_of(fleet: Path, folder: Path, dns: Sequence[str] = ()) -> PoolSource:
    """Return the source of pools for this process and its workers.

    Args:
        fleet: The fleet file.
        folder: A private folder that they share.
        dns: Name servers, ``ip:port``.
    """
    seed = int(os.environ[SEED_VARIABLE])

    def feed(take: Take) -> Any:
        from tidegate.picker.feed import FileFeed  # noqa: PLC0415 - loads Envoy's messages

        return FileFeed(fleet, folder, take, seed=seed, dns=dns)

    words = (str(fleet.resolve()), str(folder), *dns)
    return PoolSource(feed, f"file {fleet}", "tidegate.picker.worker", words)
