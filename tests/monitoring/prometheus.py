"""A real Prometheus that scrapes a running system each second."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import yaml

from monitoring.binaries import found
from support.promql import RULES
from support.traffic import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    import aiohttp

EVERY = "1s"


class Prometheus:
    """A running Prometheus with our rules."""

    def __init__(self, http: aiohttp.ClientSession, address: str) -> None:
        self._http = http
        self._url = f"http://{address}"

    async def query(self, expression: str) -> list[Any]:
        """Return the series of an expression.

        Raises:
            ValueError: Prometheus does not understand it.
        """
        data = {"query": expression}
        async with self._http.post(f"{self._url}/api/v1/query", data=data) as answer:
            told = await answer.json()
        if told["status"] != "success":
            raise ValueError(f"{expression}: {told}")
        result = told["data"]["result"]
        return result if isinstance(result, list) else [result]

    async def true_alerts(self) -> list[dict[str, str]]:
        """Return the labels of alerts whose expression is true, whether they fire yet or not."""
        async with self._http.get(f"{self._url}/api/v1/alerts") as answer:
            told = await answer.json()
        return [each["labels"] for each in told["data"]["alerts"]]

    async def ready(self) -> bool:
        """Return whether it answers."""
        with contextlib.suppress(OSError):
            async with self._http.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        return False


@contextlib.asynccontextmanager
async def scraping(
    http: aiohttp.ClientSession, folder: Path, address: str, jobs: Mapping[str, Mapping[str, Any]]
) -> AsyncIterator[Prometheus]:
    """Run a Prometheus.

    Args:
        http: Client to ask it with.
        folder: Where it keeps its data.
        address: Where it listens.
        jobs: Settings of each job by its name; ``targets`` are the addresses.
    """
    configs = []
    for name, job in jobs.items():
        more = {key: value for key, value in job.items() if key != "targets"}
        targets = [{"targets": list(job["targets"])}]
        configs.append({"job_name": name, "static_configs": targets, **more})
    timing = {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY}
    config = folder / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {"global": timing, "rule_files": list(map(str, RULES)), "scrape_configs": configs}
        )
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            found("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
            stderr=log,
        )
        try:
            running = Prometheus(http, address)
            assert await eventually(running.ready), (folder / "prometheus.log").read_text()
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
