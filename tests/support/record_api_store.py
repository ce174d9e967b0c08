"""Record what an API server answers: ``PYTHONPATH=tests:. python -m support.record_api_store``."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import closing
from pathlib import Path

from kubernetes.cluster import ADMIN, Cluster
from support.api_store import RECORDED, SPACE, ApiPort, ApiRecorder
from support.shared_keys import shared


async def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder:
        async with Cluster(Path(folder)) as cluster:
            made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
            await cluster.apply(made)
            await asyncio.to_thread(_record, cluster.url, cluster.ca)


def _record(url: str, ca: Path) -> None:
    recorder = ApiRecorder(url, ca, ADMIN)
    with ApiPort(recorder.answer) as port, closing(port.store()) as store:
        shared(store)
    for each in recorder.calls:  # what is of this run alone
        found = each["answer"]
        for one in (found, *found.get("items", ())):
            for key in ("uid", "creationTimestamp", "managedFields"):
                one["metadata"].pop(key, None)
    RECORDED.write_text(json.dumps(recorder.calls, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
