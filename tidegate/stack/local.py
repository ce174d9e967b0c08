"""The whole system on this machine: Triton replicas, control server, picker and Envoy.

``tidegate demo``, ``tidegate up`` and the end-to-end tests use it.

Rules:

1. By default all processes listen on 127.0.0.1, on ports that are held for the lifetime of the
   stack, so a killed service restarts on its old address.
2. ``async with`` returns when requests are served: every model is ready, Envoy listens, Envoy
   and the picker have acknowledged all resources, and one inference succeeded through Envoy.
3. Leaving the context ends every child that the stack started. Triton replicas that were passed
   in keep running.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import yaml

from tidegate.stack import commands
from tidegate.stack import envoy as envoy_process
from tidegate.stack.addresses import Addresses
from tidegate.stack.fleet import POOL_OF, FleetChange, build_fleet
from tidegate.stack.probes import inference_through, picker_healthy, status_synced
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Crash, Supervisor, first_crash
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate.stack.tritons.fleet import Tritons
from tidegate.stack.tritons.replica import MODELS, TritonReplica
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

READY_TIMEOUT_S: Final = 60.0
"""Time limit for each service to become ready, seconds; allows for a busy machine."""
PICKER_ID: Final = "picker-1"
GATEWAY_ID: Final = "gateway-1"
ENVOY_ID: Final = "envoy-1"
ENVOY_CLUSTER: Final = "tidegate"

CONTROL_SERVER: Final = "control-server"
PICKER: Final = "picker"
GATEWAY: Final = "gateway"
ENVOY: Final = "envoy"


class LocalStack:
    """One running system; an async context manager.

    Args:
        replicas: Number of Triton replicas to start (the last of several is the canary), or
            running replicas to route to.
        tritons: Started replicas to use instead; they keep running when the stack ends.
        models: Models of the replicas, one pool each; ``ValueError`` if empty or unknown.
        protocol: xDS variant of Envoy.
        body: Body mode of the pools: ``none``, ``peek`` or ``full``.
        time_scale: Factor on the language model's times; 0.1 = ten times faster.
        model_env: Additional environment of the Triton replicas that the stack starts.
        fleet: Change of the default fleet, see ``FleetChange``.
        fleet_file: Fleet file to use unchanged and to watch; ``replicas`` then only names the
            replicas to probe. Its listener and pickers must equal those of ``addresses``.
        addresses: Listen addresses; default: free ports.
        gateway: Whether to run a gateway; ignored if ``addresses`` is given.
        state: Folder of the control server's revisions; default: one in the run folder.
        concurrency: Number of Envoy's worker threads.
        workers: Number of picker processes; ignored if ``addresses`` is given.
        transport: gRPC server of the picker: ``auto``, ``grpc`` or ``nghttp2``.
        picker_from: Installation from which the picker runs, such as ``build/compiled``.
        on_progress: Called with ``(step, detail)`` while processes become ready.
    """

    def __init__(
        self,
        *,
        replicas: int | Sequence[TritonReplica] = 3,
        tritons: Tritons | None = None,
        models: Sequence[str] = MODELS,
        protocol: envoy_process.XdsProtocol = "delta",
        body: str = "peek",
        time_scale: float = 1.0,
        model_env: Mapping[str, str] | None = None,
        fleet: FleetChange | None = None,
        fleet_file: Path | None = None,
        addresses: Addresses | None = None,
        gateway: bool = False,
        state: Path | None = None,
        concurrency: int = 2,
        workers: int = 1,
        transport: str = "auto",
        picker_from: Path | None = None,
        on_progress: Callable[[str, str], None] | None = None,
    ) -> None:
        unknown = [model for model in models if model not in POOL_OF]
        if unknown or not models:
            raise ValueError(f"models {list(models)}: choose some of {', '.join(POOL_OF)}")
        self._wanted = replicas
        self._tritons = tritons
        self._models = tuple(models)
        self._protocol: envoy_process.XdsProtocol = protocol
        self._body = body
        self._model_env = {"TOY_LLM_TIME_SCALE": str(time_scale), **(model_env or {})}
        self._change = fleet
        self._given_fleet = fleet_file
        self._given_addresses = addresses
        self._state = state
        self._concurrency = concurrency
        self._workers, self._gateway = workers, gateway
        self._transport = transport
        self._picker_from = picker_from
        self._on_progress = on_progress
        self._exit = AsyncExitStack()
        self._replicas: tuple[TritonReplica, ...] = ()

    async def __aenter__(self) -> Self:
        """Start all processes and wait until requests are served.

        Raises:
            ExtraMissingError: Envoy or Triton is not installed.
            CrashError: A child crashed; the message contains the end of its log.
            StackError: A process was not ready in time; the message says what was missing.
        """
        binary = envoy_process.envoy_binary()
        async with AsyncExitStack() as exit_:
            self._run = exit_.enter_context(RunFolder.create())
            ports = exit_.enter_context(HeldPorts())
            free = Addresses.free(ports, self._workers, self._run.path, gateway=self._gateway)
            self._addresses = self._given_addresses or free
            self._http = await exit_.enter_async_context(aiohttp.ClientSession())
            await self._enter_replicas(exit_)
            self._supervisor = Supervisor(self._run.logs)
            exit_.push_async_callback(self._supervisor.stop)
            self._fleet_file = self._given_fleet or self.write_fleet(
                build_fleet(
                    self._replicas,
                    listener=self._addresses.listener,
                    pickers=self._addresses.pickers,
                    models=self._models,
                    body=self._body,
                    gateway=self._addresses.gateway,
                    change=self._change,
                )
            )
            await self._launch_control_server()
            await self._launch_picker()
            await self._launch_gateway()
            # Start the control server first: Envoy backs off after a failed connection.
            await self._wait(lambda: status_synced(self._addresses.admin, ()), "the control server")
            await self._launch_envoy(binary)
            await self._wait_ready()
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop every process that the stack started."""
        await self._exit.aclose()

    # --- Addresses and files ------------------------------------------------------------------

    @property
    def addresses(self) -> Addresses:
        """All addresses."""
        return self._addresses

    @property
    def http_address(self) -> str:
        """``ip:port`` of Envoy's listener."""
        return self._addresses.listener

    @property
    def http_url(self) -> str:
        """URL of Envoy's listener, without a slash at its end."""
        return f"http://{self._addresses.listener}"

    @property
    def grpc_address(self) -> str:
        """``ip:port`` for gRPC clients: the same listener."""
        return self._addresses.listener

    @property
    def envoy_admin(self) -> str:
        """``ip:port`` of Envoy's admin page."""
        return self._addresses.envoy_admin

    @property
    def admin_address(self) -> str:
        """``unix:PATH`` or ``ip:port`` of the control server's admin gRPC."""
        return self._addresses.admin

    @property
    def picker_metrics(self) -> str:
        """``ip:port`` of the picker's pages."""
        return self._addresses.picker_metrics

    @property
    def picker_pages(self) -> tuple[str, ...]:
        """``ip:port`` of each worker's ``/metrics`` and ``/debug/state``."""
        return self._addresses.picker_pages

    @property
    def control_metrics(self) -> str:
        """``ip:port`` of the control server's ``/metrics``."""
        return self._addresses.control_metrics

    @property
    def replicas(self) -> tuple[TritonReplica, ...]:
        """The replicas."""
        return self._replicas

    @property
    def tritons(self) -> Tritons | None:
        """The Triton replicas of the stack; ``None`` if it routes to given endpoints only."""
        return self._tritons

    @property
    def fleet_file(self) -> Path:
        """The fleet file that the control server watches."""
        return self._fleet_file

    @property
    def run(self) -> RunFolder:
        """The run folder; its logs are in ``run.logs``."""
        return self._run

    def pid(self, service: str) -> int:
        """Return the process id of a service: ``CONTROL_SERVER``, ``PICKER`` or ``ENVOY``."""
        return self._supervisor.pid(service)

    # --- Operations ---------------------------------------------------------------------------

    def read_fleet(self) -> dict[str, Any]:
        """Return the fleet file's content."""
        fleet: dict[str, Any] = yaml.safe_load(self._fleet_file.read_text("utf-8"))
        return fleet

    def write_fleet(self, fleet: Mapping[str, Any]) -> Path:
        """Write the run's fleet file atomically and return its path."""
        return self._run.write("fleet.yaml", yaml.safe_dump(dict(fleet), sort_keys=False))

    async def kill_replica(self, name: str) -> None:
        """Send SIGKILL to a replica's process group and wait until the replica has ended."""
        await self._own_tritons().kill(name)

    async def restart_replica(self, name: str) -> None:
        """Restart a replica on its addresses and wait until its models are ready."""
        await self._own_tritons().restart(name)

    async def kill_picker(self) -> None:
        """Send SIGKILL to the picker."""
        await self._supervisor.kill(PICKER)

    async def start_picker(self) -> None:
        """Restart the picker; wait until it has its pools and Envoy finds it healthy."""
        await self._supervisor.restart(PICKER)
        await self._wait(self._picker_ready, "the picker")
        await self._wait(self._picker_healthy, "the picker")

    async def gateway_ready(self) -> None:
        """Wait until Envoy asks the gateway, if there is one."""
        if self._addresses.gateway is not None:
            url = f"{self.http_url}/v2"
            await self._wait(lambda: http_ok(self._http, url), "the gateway")
            self._progress("gateway", f"for operators at {self._addresses.gateway.admin}")

    async def kill_control_server(self) -> None:
        """Send SIGKILL to the control server."""
        await self._supervisor.kill(CONTROL_SERVER)

    async def start_control_server(self) -> None:
        """Restart the control server and wait until its clients are in sync."""
        await self._supervisor.restart(CONTROL_SERVER)
        await self.wait_synced()

    async def wait_synced(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until Envoy and the running picker have acknowledged all subscribed resources."""
        await self._wait(self._synced, "the control server's clients", timeout_s)

    async def crashed(self) -> Crash:
        """Wait until a child crashes; a kill through the stack is not a crash."""
        return await first_crash(self._supervisors())

    def keep_running(self, on_restart: Callable[[Crash], None]) -> None:
        """Start services again that exit unexpectedly from now on; each exit is told."""
        self._supervisor.keep_running(on_restart)

    # --- Internals ----------------------------------------------------------------------------

    async def _enter_replicas(self, exit_: AsyncExitStack) -> None:
        if self._tritons is None and isinstance(self._wanted, int) and self._given_fleet is None:
            self._tritons = await exit_.enter_async_context(
                Tritons(
                    self._wanted,
                    models=self._models,
                    env=self._model_env,
                    run=self._run,
                    on_progress=self._on_progress,
                )
            )
        if self._tritons is not None:
            self._replicas = self._tritons.replicas
        elif not isinstance(self._wanted, int):
            self._replicas = tuple(self._wanted)

    async def _launch_control_server(self) -> None:
        state = self._state or self._run.path / "state"
        state.mkdir(parents=True, exist_ok=True)
        command = commands.control_server(self._addresses, self._fleet_file, state)
        await self._launch_service(CONTROL_SERVER, *command)

    async def _launch_picker(self) -> None:
        await self._launch_service(
            PICKER,
            *commands.picker(self._addresses, PICKER_ID, self._transport),
            group=len(self._addresses.pickers) > 1,
            installed=self._picker_from,
        )

    async def _launch_gateway(self) -> None:
        gateway = self._addresses.gateway
        if gateway is not None:
            command = commands.gateway(gateway, self._addresses.ads, GATEWAY_ID)
            await self._launch_service(GATEWAY, *command)

    async def _launch_service(
        self,
        name: str,
        module: str,
        *flags: str,
        group: bool = False,
        installed: Path | None = None,
    ) -> None:
        command = module_command(module, *flags)
        await self._supervisor.start(name, command, service_environment(installed), group=group)

    async def _launch_envoy(self, binary: Path) -> None:
        bootstrap = envoy_process.render_bootstrap(
            ENVOY_ID,
            ENVOY_CLUSTER,
            self._addresses.ads,
            self._addresses.envoy_admin,
            self._protocol,
        )
        config = self._run.write("envoy.yaml", bootstrap)
        command = envoy_process.envoy_command(binary, config, self._concurrency)
        await self._supervisor.start(ENVOY, command, envoy_process.envoy_environment())

    async def _wait_ready(self) -> None:
        await self._wait(self._synced, "the control server's clients")
        self._progress("control server", f"admin at {self._addresses.admin}, all in sync")
        await self._wait(self._picker_ready, "the picker")
        self._progress("picker", f"metrics at {self._addresses.picker_metrics}")
        await self._wait(
            lambda: http_ok(self._http, f"http://{self._addresses.envoy_admin}/ready"), "Envoy"
        )
        await self._wait(self._picker_healthy, "the picker")
        await self.gateway_ready()
        self._progress("envoy", f"admin at {self._addresses.envoy_admin}")
        if self._replicas:
            model = self._models[0]
            await self._wait(
                lambda: inference_through(self._http, self.http_url, model),
                "an inference through Envoy",
            )
        self._progress("ready", f"HTTP and gRPC at {self._addresses.listener}")

    async def _synced(self) -> str | None:
        kinds = {"envoy"} | ({"picker"} if self._supervisor.running(PICKER) else set())
        return await status_synced(self._addresses.admin, kinds)

    async def _picker_healthy(self) -> str | None:
        addresses = self._addresses
        return await picker_healthy(self._http, addresses.envoy_admin, len(addresses.pickers))

    async def _picker_ready(self) -> str | None:
        for page in self._addresses.picker_pages:
            missing = await http_ok(self._http, f"http://{page}/healthz")
            if missing is not None:
                return missing
        if self._supervisor.running(CONTROL_SERVER):
            return await status_synced(self._addresses.admin, {"picker"})
        return None

    async def _wait(self, look: Any, what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        await wait_until(look, what, timeout_s=timeout_s, supervisors=self._supervisors())

    def _supervisors(self) -> tuple[Supervisor, ...]:
        if self._tritons is None:
            return (self._supervisor,)
        return (self._supervisor, self._tritons.supervisor)

    def _own_tritons(self) -> Tritons:
        if self._tritons is None:
            raise ValueError("this stack routes to replicas that it did not start")
        return self._tritons

    def _progress(self, step: str, detail: str) -> None:
        if self._on_progress is not None:
            self._on_progress(step, detail)
