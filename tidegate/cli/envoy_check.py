"""Validation of a fleet's xDS resources by the Envoy binary (``envoy --mode validate``)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.terminal.errors import CliError

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet

TIMEOUT_S: Final = 60.0
"""Limit of one validation, seconds; Envoy needs about one second on an idle machine."""
MAX_REASON: Final = 4096

_COMPLAINT = re.compile(r"error initializing configuration '[^']*': (.*)", re.DOTALL)


def find_envoy() -> Path | None:
    """Return the path of the installed Envoy binary, or ``None``."""
    from tidegate.stack.envoy import ExtraMissingError, envoy_binary

    try:
        return envoy_binary()
    except ExtraMissingError:
        return None


def hold(fleet: Fleet, source: str, binary: Path) -> None:
    """Let Envoy validate the resources of ``fleet``; no listener is opened.

    Envoy reads the certificate files on this machine, so they must exist here under the paths
    that the fleet names.

    Args:
        fleet: A valid fleet.
        source: Name of the fleet in error messages.
        binary: Path of the Envoy binary.

    Raises:
        CliError: Envoy rejects the fleet (the message quotes Envoy), cannot be run, or does not
            finish within ``TIMEOUT_S``.
    """
    from xds_server.snapshots.static import static_bootstrap

    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        file = Path(folder) / "bootstrap.pb"
        file.write_bytes(static_bootstrap(fleet))
        command = (
            str(binary),
            *("--mode", "validate"),
            *("--config-path", str(file)),
            *("--log-level", "error"),
        )
        try:
            done = subprocess.run(  # noqa: S603 - the binary found above, no shell
                command, capture_output=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise CliError(f"{binary} did not finish within {TIMEOUT_S:g} s") from None
        except OSError as error:
            raise CliError(f"cannot run {binary}: {error.strerror}") from error
    if done.returncode:
        raise CliError(f"Envoy rejects {source}: {reason(done.stderr.decode(errors='replace'))}")


def reason(log: str) -> str:
    """Return the reason of a rejection from Envoy's log, at most ``MAX_REASON`` characters."""
    found = _COMPLAINT.search(log)
    text = found[1] if found else log
    return text.strip()[:MAX_REASON] or "no reason given"
