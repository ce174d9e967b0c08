"""How many examples a costly property test tries.

A few in each run of all tests; ``TIDEGATE_TRIES=20`` tries twenty times as many.
"""

from __future__ import annotations

import os

TIMES = int(os.environ.get("TIDEGATE_TRIES", "1"))


def tries(few: int) -> int:
    """Return the number of examples, ``few`` unless more are asked for."""
    return few * TIMES
