"""Certificates in files that a fleet names."""

from __future__ import annotations

import os
import time

from tidegate.stack.certificates import make
from xds_server.admin.certificates import Certificates

DAY = 86_400.0


def test_files_that_the_fleet_names_are_read_again_when_they_change(tmp_path) -> None:
    """Without TLS of its own, too; what is not here, or is no certificate, says nothing."""
    short, long = (
        next(path for path in make(tmp_path / str(days), days=days) if path.name == "tls.crt")
        for days in (1, 30)
    )
    served = tmp_path / "served.pem"
    named = [("the listener", str(served)), ("nothing", str(tmp_path / "missing.pem"))]
    looked = Certificates(None, tuple, lambda: time.time() + 2 * DAY, lambda: named)
    served.write_text("no certificate")
    assert not looked.found()
    served.write_bytes(short.read_bytes())
    os.utime(served, (1.0, 1.0))
    (state,) = looked.found()
    assert (state.owner, state.left_s <= 0.0) == ("the listener", True)
    served.write_bytes(long.read_bytes())
    os.utime(served, (2.0, 2.0))
    assert not looked.found()
