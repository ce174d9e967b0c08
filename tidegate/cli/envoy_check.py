"""Envoy's own opinion of a fleet: its binary reads the resources and says what it thinks."""

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
"""Envoy needs about a second; a busy machine more."""
MAX_WORDS: Final = 4096

_COMPLAINT = re.compile(r"error initializing configuration '[^']*': (.*)", re.DOTALL)


def find_envoy() -> Path | None:
    """Return the Envoy binary of this machine, ``None`` where there is none."""
    from tidegate.stack.envoy import DemoExtraMissingError, envoy_binary

    try:
        return envoy_binary()
    except DemoExtraMissingError:
        return None


def hold(fleet: Fleet, source: str, binary: Path) -> None:
    """Let Envoy check what it would be sent of ``fleet``; nothing is started or bound.

    Certificates are read where this runs, which must see the files as the Envoys do.

    Args:
        fleet: A valid fleet.
        source: Its name in the message.
        binary: Envoy.

    Raises:
        CliError: Envoy refuses it (in its own words), or could not be asked.
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
            raise CliError(f"{binary} gave no opinion within {TIMEOUT_S:g} s") from None
        except OSError as error:
            raise CliError(f"cannot run {binary}: {error.strerror}") from error
    if done.returncode:
        raise CliError(f"Envoy refuses {source}: {words(done.stderr.decode(errors='replace'))}")


def words(log: str) -> str:
    """Return what Envoy complains of, out of its log."""
    found = _COMPLAINT.search(log)
    text = found[1] if found else log
    return text.strip()[:MAX_WORDS] or "it gives no reason"
