"""A control server without the gate on retries, for tests that must find it missing.

Routes repeat requests whose end is not known, too: Envoy sends their bodies twice.
"""

from __future__ import annotations

import runpy
from typing import Any

from xds_server.resources.routes import forwarding


def plant() -> None:
    """Replace what routes are built with."""
    replaced: Any = forwarding
    replaced.repeat_known_ends = lambda _: None


if __name__ == "__main__":
    plant()
    runpy.run_module("xds_server", run_name="__main__", alter_sys=True)
