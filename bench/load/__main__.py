"""The load process: ``python -m bench.load PLAN RESULTS`` (file formats: ``plan.py``)."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import uvloop

from bench.load.client import LoadClient
from bench.load.plan import read_plan, write_results


def main() -> None:
    """Run one plan."""
    plan, results = (Path(each) for each in sys.argv[1:3])
    load = LoadClient(read_plan(plan))
    gc.disable()  # a phase is short, and a pause would count as the server's
    write_results(results, uvloop.run(load.run()))


if __name__ == "__main__":
    main()
