"""A StatefulSet of real Tritons is rolled out under load: no request is lost, no answer is cut.

Processes are in place of pods, each at an address of its own with the manifest's ports. What
Kubernetes does is done here, in its order: a pod's EndpointSlice says that it terminates, its
preStop hook runs, then it gets SIGTERM, and SIGKILL after its grace period. The next pod's turn
comes as soon as this one's readiness probe succeeds. Commands, probes and times are those of
``deploy/kubernetes/triton.yaml``; only the hook's control server is at a plain address here. It
runs where ``TIDEGATE_ROLLOUTS`` says how often; ``-rP`` shows figures.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc
import yaml
from tritonclient.utils import InferenceServerException

from support.endpoint_slices import endpoint_slice, pod
from support.fake_api_server import FakeApiServer
from support.traffic import (
    GENERATE_STREAM,
    VISION,
    fresh_prompt,
    llm_inputs,
    vision_body,
    vision_inputs,
)
from tidegate.stack.local import LocalStack
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate.stack.tritons import replica as triton
from tidegate_api.names import SERVED_BY_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

TURNS = int(os.environ.get("TIDEGATE_ROLLOUTS", "0"))
"""How often all pods are replaced."""
TOKENS = 1200
"""Tokens of a long answer; the model makes one in 5.5 ms and more, times ``TIME_SCALE``."""
TIME_SCALE = 5
"""With it a long answer takes 33 s and more: longer than a Triton that is stopped waits."""
MODELS = ("toy-llm", "vision")
MANIFEST = Path(__file__).resolve().parents[2] / "deploy/kubernetes/triton.yaml"
CONTROL = "https://tidegate-control.infer:18080"

pytestmark = [
    pytest.mark.skipif(not TURNS, reason="TIDEGATE_ROLLOUTS is not set"),
    pytest.mark.timeout(180 + 360 * TURNS),
    pytest.mark.usefixtures("demo_extra"),
]


class Pods:
    """The StatefulSet of the manifest; an async context manager.

    Args:
        slices: Where its pods are told.
    """

    def __init__(self, slices: FakeApiServer) -> None:
        made = yaml.safe_load_all(MANIFEST.read_text())
        (spec,) = (each["spec"] for each in made if each["kind"] == "StatefulSet")
        self._slices, self._pods = slices, itertools.count()
        self._uids: dict[str, str] = {}
        self._pod = spec["template"]["spec"]
        (self._container,) = self._pod["containers"]
        draw = random.SystemRandom()
        net = f"127.{draw.randrange(64, 250)}.{draw.randrange(1, 250)}"
        ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
        self.replicas = tuple(
            triton.TritonReplica(
                name=f"triton-{number}",
                **{name: f"{net}.{number + 1}:{port}" for name, port in ports.items()},
                models=dict.fromkeys(MODELS, ("1",)),
            )
            for number in range(spec["replicas"])
        )
        self.took: dict[str, list[float]] = {"hook": [], "exit": [], "start": []}
        """Seconds of each hook, from SIGTERM to the end, and from the start to readiness."""

    async def __aenter__(self) -> Self:
        installation = triton.find_triton()
        async with AsyncExitStack() as exit_:
            run = exit_.enter_context(RunFolder.create())
            self._http = await exit_.enter_async_context(aiohttp.ClientSession())
            self._supervisor = Supervisor(
                run.logs, on_exit=lambda name: triton.remove_shared_memory(run, name)
            )
            exit_.push_async_callback(self._supervisor.stop)
            backends = triton.prepare_backends(run, installation)
            given = [each for each in self._container["args"] if each.startswith("--exit-timeout")]
            given.append("--strict-readiness=true")
            for each in self.replicas:
                command = triton.triton_command(
                    installation,
                    each,
                    triton.prepare_repository(run, each),
                    backends,
                    triton.shared_memory_prefix(run, each.name),
                )
                environment = triton.triton_environment(
                    installation, each, {"TOY_LLM_TIME_SCALE": str(TIME_SCALE)}
                )
                await self._supervisor.start(
                    each.name, (*command, *given), environment, group=True, cwd=run.path
                )
                self._tell_new(each)
            for each in self.replicas:
                await self._ready(each)
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    def _tell(self, replica: triton.TritonReplica, **conditions: Any) -> None:
        """Put the pod in its slice."""
        host = replica.http.partition(":")[0]
        said = pod(replica.name, host, uid=self._uids[replica.name], **conditions)
        self._slices.put(endpoint_slice(f"slice-{replica.name}", said))

    def _tell_new(self, replica: triton.TritonReplica) -> None:
        """Put another pod of that name in its slice."""
        self._uids[replica.name] = f"uid-{next(self._pods)}"
        self._tell(replica, ready=False)

    async def _ready(self, replica: triton.TritonReplica) -> None:
        """Wait for the readiness probe and tell it."""
        probe = self._container["readinessProbe"]
        url = f"{replica.http_url}{probe['httpGet']['path']}"
        await wait_until(
            lambda: http_ok(self._http, url),
            replica.name,
            timeout_s=90,
            supervisors=(self._supervisor,),
        )
        await asyncio.sleep(random.uniform(0, probe["periodSeconds"]))
        self._tell(replica)

    async def replace(self, replica: triton.TritonReplica, control: str) -> None:
        """Replace a pod as a rolling update does."""
        began = time.monotonic()
        until = began + self._pod["terminationGracePeriodSeconds"]
        self._tell(replica, ready=False, serving=True, terminating=True)
        await self._hook(replica, control)
        self.took["hook"].append(time.monotonic() - began)
        ended = time.monotonic()
        try:
            async with asyncio.timeout(until - ended):
                await self._supervisor.kill(replica.name, signal.SIGTERM)
        except TimeoutError:
            await self._supervisor.kill(replica.name)
        self.took["exit"].append(time.monotonic() - ended)
        self._slices.delete(f"slice-{replica.name}")
        began = time.monotonic()
        await self._supervisor.restart(replica.name)
        self._tell_new(replica)
        await self._ready(replica)
        self.took["start"].append(time.monotonic() - began)

    async def _hook(self, replica: triton.TritonReplica, control: str) -> None:
        words = self._container["lifecycle"]["preStop"]["exec"]["command"]
        assert CONTROL in words[-1]
        words = (*words[:-1], words[-1].replace(CONTROL, f"http://{control}"))
        task = f"hook-{replica.name}"
        host = replica.http.partition(":")[0]
        await self._supervisor.start(task, words, {**service_environment(), "POD_IP": host})
        self._supervisor.expect_end(task)
        child = self._supervisor._children[task]
        await child.watch
        assert child.process.returncode == 0, self._supervisor.log(task).read_text()


class Clients:
    """Requests of one kind, one after another on each of some tasks.

    Args:
        ask: Asks once; returns which replica answered, and what was wrong, if anything.
        at_once: Number of tasks.
        pause_s: Between an answer and the next request of a task.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[tuple[str, str]]], at_once: int, pause_s: float
    ) -> None:
        self._ask, self._at_once, self._pause_s = ask, at_once, pause_s
        self.answered: Counter[str] = Counter()
        """By replica."""
        self.wrong: Counter[str] = Counter()
        self._last = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._at_once)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._last = True
        await asyncio.gather(*self._tasks)

    async def _work(self) -> None:
        while not self._last:
            try:
                replica, wrong = await self._ask()
            except (aiohttp.ClientError, TimeoutError, InferenceServerException) as error:
                replica, wrong = "", repr(error)
            if wrong:
                self.wrong[wrong] += 1
            else:
                self.answered[replica] += 1
            await asyncio.sleep(self._pause_s)


def clients(
    stack: LocalStack, http: aiohttp.ClientSession, grpc: triton_grpc.InferenceServerClient
) -> dict[str, Clients]:
    """Return clients of both protocols, for short answers and for long ones."""

    async def short_http() -> tuple[str, str]:
        async with http.post(stack.http_url + VISION, json=vision_body()) as answer:
            text = await answer.text()
            wrong = "" if answer.status == 200 else f"{answer.status} {text[:200]}"
            return answer.headers.get(SERVED_BY_HEADER, ""), wrong

    async def short_grpc() -> tuple[str, str]:
        await grpc.infer("vision", vision_inputs(), client_timeout=60)
        return "", ""

    async def long_http() -> tuple[str, str]:
        body = {"text_input": fresh_prompt(64), "max_tokens": TOKENS, "stream": True}
        async with http.post(stack.http_url + GENERATE_STREAM, json=body) as answer:
            found = [orjson.loads(line[6:]) async for line in answer.content if line.strip()]
            replica = answer.headers.get(SERVED_BY_HEADER, "")
            return replica, "" if whole(len(found)) else f"{answer.status} {found[-1:]}"

    async def long_grpc() -> tuple[str, str]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(64), TOKENS)}

        count = 0
        async for _, error in grpc.stream_infer(requests()):
            if error is not None:
                return "", f"after {count}: {error}"
            count += 1
        return "", "" if whole(count) else f"{count} answers"

    return {
        "short, HTTP": Clients(short_http, 4, 0.1),
        "short, gRPC": Clients(short_grpc, 4, 0.1),
        "long, HTTP": Clients(long_http, 3, 0.1),
        "long, gRPC": Clients(long_grpc, 3, 0.1),
    }


def whole(count: int) -> bool:
    """Return whether so many messages are a whole long answer."""
    return count == TOKENS


async def test_a_rollout_of_real_tritons_cuts_nothing() -> None:
    """Each pod in its turn, with short and long requests over both protocols."""
    async with AsyncExitStack() as exit_:
        slices = await exit_.enter_async_context(FakeApiServer())
        pods = await exit_.enter_async_context(Pods(slices))
        found = {
            "kubernetes": {"service": "triton", "namespace": "infer", "api": {"url": slices.url}},
            "metrics_port": int(pods.replicas[0].metrics.rpartition(":")[2]),
        }

        def change(fleet: dict[str, Any]) -> None:
            for each in fleet["pools"]:
                each |= {"variants": [{"name": "stable"}], "endpoints_from": [found]}
                del each["endpoints"]

        stack = await exit_.enter_async_context(
            LocalStack(replicas=pods.replicas, models=MODELS, fleet=change, transport="grpc")
        )
        patience = aiohttp.ClientTimeout(total=120)
        http = await exit_.enter_async_context(aiohttp.ClientSession(timeout=patience))
        grpc = await exit_.enter_async_context(
            triton_grpc.InferenceServerClient(stack.grpc_address)
        )
        asking = clients(stack, http, grpc)
        async with AsyncExitStack() as load:
            for client in asking.values():
                await load.enter_async_context(client)
            await asyncio.sleep(3)
            for _ in range(TURNS):
                for each in pods.replicas:
                    await pods.replace(each, stack.control_metrics)
            before = Counter(asking["short, HTTP"].answered)

            async def all_back() -> str | None:
                more = asking["short, HTTP"].answered - before
                missing = {each.http for each in pods.replicas} - more.keys()
                return f"no answers of {sorted(missing)}" if missing else None

            began = time.monotonic()
            await wait_until(all_back, "replicas", timeout_s=90, supervisors=())
            back_s = time.monotonic() - began
    took = {name: [round(each, 1) for each in times] for name, times in pods.took.items()}
    counts = {name: each.answered.total() for name, each in asking.items()}
    print(f"rolled {TURNS} times; answers: {counts}; seconds: {took}; back after {back_s:.1f} s")  # noqa: T201 - figures
    assert not {name: each.wrong for name, each in asking.items() if each.wrong}
    assert min(counts.values()) > 3
