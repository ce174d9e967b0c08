"""Record what the control server of a release tells pickers, for tests of later ones.

Run it with a checkout of that release as the first folder of ``PYTHONPATH``::

    PYTHONPATH=CHECKOUT:tests python -P -m support.record_pools > pools-VERSION.json
"""

from __future__ import annotations

import json
import sys

from support.record_store import TEXT
from xds_server.fleet.load import load_text
from xds_server.fleet.view import View
from xds_server.resources.pools import pool_resource


def main() -> None:
    """Print the pools of the fleet of ``record_store``, as hexadecimal digits by name."""
    fleet = load_text(TEXT, "fleet.yaml")
    pools = {each.name: pool_resource(View(fleet, seed=7), each).hex() for each in fleet.pools}
    sys.stdout.write(json.dumps(pools, indent=1) + "\n")


if __name__ == "__main__":
    main()
