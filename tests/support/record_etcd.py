"""Record what a real etcd answers: ``PYTHONPATH=tests:. python -m support.record_etcd``."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import grpc

from kubernetes.etcd import EtcdCluster
from support.etcd_port import PREFIX, RECORDED, EtcdPort, Recorder, used
from xds_server.leading.etcd import Etcd


async def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder:
        async with EtcdCluster(Path(folder), 1) as cluster:
            await asyncio.to_thread(_record, cluster.clients[0])


def _record(address: str) -> None:
    recorder = Recorder(grpc.insecure_channel(address))
    with EtcdPort(recorder.answer) as port:
        used(Etcd([port.address], PREFIX))
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(recorder.calls, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
