"""Many small models on real Tritons: ensembles over one Python model, placed as a test likes.

An ensemble has no process of its own, so it loads in some milliseconds.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import orjson

from support.traffic import vision_body

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from tidegate.stack.tritons.fleet import Tritons
    from tidegate.stack.tritons.replica import TritonReplica

CONFIG = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "replica" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling {
  step [ {
    model_name: "vision"
    model_version: -1
    input_map { key: "image" value: "image" }
    output_map { key: "replica" value: "replica" }
  } ]
}
"""
BODY = orjson.dumps(vision_body())
AT_ONCE = 4
"""Model control calls at one time and replica."""


class PlacedModels:
    """Ensembles ``names`` on running Tritons; an async context manager.

    Args:
        http: Client.
        tritons: The replicas; each has the model ``vision``.
        names: Names of the ensembles. None is loaded at the beginning.
    """

    def __init__(self, http: aiohttp.ClientSession, tritons: Tritons, names: Iterable[str]) -> None:
        self._http = http
        self._tritons = tritons
        self.names = tuple(names)
        self.since: dict[tuple[str, str], float] = {}
        """Model and replica of each loaded ensemble, and when it was loaded, monotonic seconds."""
        self.changes = 0

    async def __aenter__(self) -> Self:
        """Write the ensembles into the replicas' repositories."""
        for replica in self._tritons.replicas:
            here = self._tritons.run.path / "repositories" / replica.name
            for name in self.names:
                (here / name / "1").mkdir(parents=True, exist_ok=True)
                (here / name / "config.pbtxt").write_text(CONFIG, "utf-8")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Unload what is loaded, and leave nothing that an index would list."""
        await self.change(dict.fromkeys(self.since, False))
        for replica in self._tritons.replicas:
            here = self._tritons.run.path / "repositories" / replica.name
            for name in self.names:
                shutil.rmtree(here / name)

    @property
    def replicas(self) -> tuple[TritonReplica, ...]:
        """The replicas."""
        return self._tritons.replicas

    def on(self, model: str) -> set[str]:
        """Return the replicas that have a model loaded."""
        return {replica for name, replica in self.since if name == model}

    def replica(self, name: str) -> TritonReplica:
        """Return one of the replicas."""
        return self._tritons.replica(name)

    async def change(self, wanted: dict[tuple[str, str], bool]) -> None:
        """Load and unload: by model and replica, whether it should be loaded."""
        places = {each.name: asyncio.Semaphore(AT_ONCE) for each in self._tritons.replicas}

        async def one(model: str, replica: TritonReplica, load: bool) -> None:
            async with places[replica.name]:
                await self._call(replica, f"{model}/{'load' if load else 'unload'}")
            if load:
                self.since[model, replica.name] = time.monotonic()
            else:
                self.since.pop((model, replica.name), None)
            self.changes += 1

        await asyncio.gather(
            *(one(name, self._tritons.replica(at), load) for (name, at), load in wanted.items())
        )

    async def _call(self, replica: TritonReplica, what: str) -> None:
        """Load or unload; once more on a connection of its own if the first one is cut.

        Both may be repeated. A Triton that has died fails this with the end of its log.
        """
        url = f"{replica.http_url}/v2/repository/models/{what}"
        try:
            async with self._http.post(url) as answer:
                assert answer.status == 200, await answer.text()
                return
        except aiohttp.ClientConnectionError as error:
            cut = repr(error)
        try:
            async with aiohttp.ClientSession() as fresh, fresh.post(url) as answer:
                assert answer.status == 200, await answer.text()
        except aiohttp.ClientConnectionError as error:
            log = self._tritons.run.logs / f"{replica.name}.log"
            end = log.read_text("utf-8", "replace")[-3000:]
            raise AssertionError(f"{what} at {replica.name}: {cut}, {error!r}; {end}") from error
        sys.stdout.write(f"{what} at {replica.name} was repeated: {cut}\n")

    async def spread(self, rng: Random) -> None:
        """Load each model on one to three replicas."""
        replicas = [each.name for each in self._tritons.replicas]
        wanted = {
            (name, at): True
            for name in self.names
            for at in rng.sample(replicas, rng.randint(1, len(replicas)))
        }
        await self.change(wanted)

    def drawn(self, rng: Random, count: int, settled_s: float) -> dict[tuple[str, str], bool]:
        """Draw changes that leave each model on a replica that has had it for ``settled_s``.

        At most one replica loses a model.
        """
        now, wanted, losing = time.monotonic(), dict[tuple[str, str], bool](), set[str]()
        every = [(name, each.name) for name in self.names for each in self._tritons.replicas]
        for place in rng.sample(every, count):
            name, at = place
            if place not in self.since:
                wanted[place] = True
                continue
            rest = [self.since[name, other] for other in self.on(name) - {at}]
            if name not in losing and any(now - since > settled_s for since in rest):
                losing.add(name)
                wanted[place] = False
        return wanted

    async def ask(self, url: str, model: str) -> tuple[int, str]:
        """Send one request; return its status, and which replica served it or why none did."""
        where = f"{url}/v2/models/{model}/infer"
        async with self._http.post(where, data=BODY) as answer:
            text = await answer.read()
            if answer.status != 200:
                return answer.status, text.decode("utf-8", "replace")
            outputs: list[dict[str, Any]] = orjson.loads(text)["outputs"]
            return answer.status, outputs[0]["data"][0]
