"""A stack whose replicas account for each byte: real Envoy, real picker, real configuration."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from support.certificates import Authority
from support.framing.cases import BUFFER_BYTES, MAX_BODY, MODES, PEEK_BYTES
from support.framing.law import Book
from support.framing.replicas import HEALTH, REPLICAS, Replica
from support.http3_client import http3_client
from support.in_process_stack import PICKER, InProcessStack
from support.replicas import PATIENT
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.waiting import http_ok, wait_until


class FramingStack(InProcessStack):
    """Three replicas behind a pool per body mode, each also with a shadow.

    Args:
        folder: Where it makes certificates.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__("delta", spare=0)
        self._authority = Authority(folder, "authority")
        self._pair = self._authority.sign("edge", "DNS:edge.test", "IP:127.0.0.1")
        self.book = Book()
        self.replicas = [Replica(self.book, f"r{number}") for number in range(REPLICAS)]
        self.shadow = Replica(self.book, "shadow", shadow=True)
        self._serving = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_:
            for replica in (*self.replicas, self.shadow):
                await replica.start()
                exit_.push_async_callback(replica.stop)
            ports = exit_.enter_context(HeldPorts())
            self._tls, self.http3 = ports.address(), ports.address()
            await super().__aenter__()
            await self._start_http3()
            self._serving = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything; what came on a connection until its end has been judged then."""
        await super().__aexit__(*_)
        await self._serving.aclose()

    async def replace_picker(self, program: Path) -> None:
        """Let another program be the picker."""
        await self.supervisor.kill(PICKER)
        command = (sys.executable, "-P", str(program), "--listen", self.picker)
        command += ("--xds", self.client_address, "--metrics", self._page, "--id", "picker-1")
        await self.supervisor.start(PICKER, command, service_environment())
        # Until then Envoy may take the picker that was there for well.
        url = f"http://{self._page}/healthz"
        await wait_until(
            lambda: http_ok(self.http, url),
            "the other picker",
            timeout_s=60,
            supervisors=(self.supervisor,),
        )
        await self.serving()

    async def _start_http3(self) -> None:
        """Start an Envoy that sends on over HTTP/3 what it gets at ``http3``."""
        config = http3_client(self.http3, self._tls, self._authority.own.certificate)
        file = self.run.write("client.yaml", yaml.safe_dump(config))
        command = envoy_command(envoy_binary(), file, 1)
        await self.supervisor.start("client", command, envoy_environment())
        url = f"http://{self.http3}/v2/health/ready"
        await wait_until(
            lambda: http_ok(self.http, url),
            "the client over HTTP/3",
            timeout_s=60,
            supervisors=(self.supervisor,),
        )

    async def _start_picker(self, page: str) -> None:
        self._page = page
        await super()._start_picker(page)

    def first_fleet(self, idle: str = "300s") -> dict[str, Any]:
        """Return a pool per body mode, without and with a shadow, and one for streams.

        Args:
            idle: The pools' ``timeouts.idle``, with which all routes change.
        """
        pools = [self._pool(f"m-{mode}", mode) for mode in MODES]
        pools += [self._pool(f"m-{mode}-copied", mode, copied=True) for mode in MODES]
        pools.append(self._pool("m-duplex", "peek", first_message="duplex"))
        pools[1]["default"] = True
        for pool in pools:
            pool["timeouts"] = {"idle": idle}
        return {
            "listener": {
                "address": self._tls,
                "tls": {"certificate": str(self._pair.certificate), "key": str(self._pair.key)},
                "http3": True,
                "buffer_bytes": BUFFER_BYTES,
                "further": [{"name": "plain", "address": self.listener}],
            },
            "pickers": {"addresses": [self.picker], "timeout": PATIENT},
            "pools": pools,
        }

    def _pool(
        self, name: str, mode: str, *, copied: bool = False, **routing: Any
    ) -> dict[str, Any]:
        replicas = [*self.replicas, *([self.shadow] if copied else [])]
        more = {}
        if copied:
            variants = [{"name": "stable", "weight": 100}, {"name": "shadow", "weight": 0}]
            more = {"variants": variants, "shadow": {"variant": "shadow"}}
        return {
            "name": name,
            "match": {"models": [name]},
            "endpoints": [
                {
                    "id": each.name,
                    "http": each.http,
                    "grpc": each.grpc,
                    "variant": "shadow" if each.shadow else "stable",
                }
                for each in replicas
            ],
            "slow_start": {"window": 0},
            "health": {
                "path": HEALTH,
                "interval": "60s",
                "timeout": PATIENT,
                "repository": False,
            },
            # Replicas fail as often as cases want, and none is to be left alone for it.
            "outlier": {"consecutive_failures": 1000, "failure_percent": 0, "frozen_after": 0},
            "routing": {
                "body": mode,
                "peek_bytes": PEEK_BYTES,
                "max_body": MAX_BODY,
                "fallbacks": 2,
                "retry_read": 1,
                "refuse_deadly": False,
                **routing,
            },
            **more,
        }
