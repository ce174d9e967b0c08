"""The parts of a whole system: their addresses, fleet, certificates and commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import orjson

from kubernetes.binaries import home
from support.certificates import Pair
from support.chaos.real.schedule import PARTS, group, members
from support.identities import Presented
from tidegate.stack import certificates
from tidegate.stack.envoy import (
    BootstrapTls,
    envoy_binary,
    envoy_command,
    envoy_environment,
    render_bootstrap,
    secrets_of,
)
from tidegate.stack.processes.spawning import service_environment
from tidegate_common.children import ROOT, module_command

FIRST: Final = 1000
"""The fleet's first value of ``max_requests`` of the pool ``llm``."""
KEY: Final = "circuit_breakers.llm/stable/http.default.max_requests"
"""Where an Envoy shows it."""


class System:
    """Two Envoys, a group of pickers, control servers on etcd, and replicas of two pools.

    Without a built etcd there is one control server, with SQLite.

    Args:
        run: Folder of its files.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self.receipts = run / "receipts"
        """What the replicas have read."""
        self.etcd = (home() / "etcd").exists()
        names = [name for each in PARTS if self.etcd or each != "etcd" for name in members(each)]
        if not self.etcd:
            names.remove("control-2")
        tens = {each: 10 * number for number, each in enumerate(PARTS, 1)}
        self.at = {name: f"198.18.0.{tens[group(name)] + int(name[-1])}" for name in names}
        """Address of each part; its ports are those of its group."""

    def prepare(self) -> None:
        """Write what all of them read."""
        hosts, pickers = list(self.at.values()), self.named("picker")
        certificates.make(self._run / "certs", hosts, pickers=pickers)
        self._write_fleet()

    def named(self, kind: str) -> list[str]:
        """Return the parts of a group."""
        return [name for name in self.at if group(name) == kind]

    def _files(self, role: str) -> dict[str, str]:
        folder = self._run / "certs" / role
        return {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")}

    def presented(self, role: str) -> Presented:
        """Return a client of a role."""
        files = self._files(role)
        pair = Pair(Path(files["certificate"]), Path(files["key"]))
        return Presented(self._run / "certs" / "ca.crt", pair)

    def _write_fleet(self) -> None:
        def pool(name: str, model: str, **more: Any) -> dict[str, Any]:
            at = {each: self.at[each] for each in self.named(name)}
            routing = {"body": "peek", **more.pop("routing", {})}
            ports = {each: {"http": f"{ip}:8000", "grpc": f"{ip}:8001"} for each, ip in at.items()}
            return {
                "name": name,
                "match": {"models": [model], **more.pop("match", {})},
                "endpoints": [
                    {"id": each, **ports[each], "metrics": f"http://{ip}:8000/metrics"}
                    for each, ip in at.items()
                ],
                "routing": routing,
                "health": {"interval": "1s", "timeout": "2s"},
                "timeouts": {"first_answer": "6s", "first_answer_least": "6s"},
                **more,
            }

        ca = str(self._run / "certs" / "ca.crt")
        fleet = {
            "listener": {"address": "0.0.0.0:10000"},
            "pickers": {
                "addresses": [f"{self.at[each]}:18001" for each in self.named("picker")],
                "tls": {**self._files("envoy"), "ca": ca},
            },
            "pools": [
                pool(
                    "llm",
                    "toy-llm",
                    match={"paths": ["/v1/completions"]},
                    circuit_breaker={"max_requests": FIRST},
                    default=True,
                ),
                pool("counter", "counter", routing={"without_picker": "closed"}),
            ],
        }
        (self._run / "fleet.yaml").write_bytes(orjson.dumps(fleet))

    def command(self, name: str, at: str, folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
        kind, env = group(name), service_environment()
        ca = self._run / "certs" / "ca.crt"
        role = "control" if kind == "control" else "picker"
        files = self._files(role)
        tls = ("--tls-cert", files["certificate"], "--tls-key", files["key"], "--tls-ca", str(ca))
        servers = ",".join(f"{self.at[each]}:18000" for each in self.named("control"))
        if kind == "etcd":
            whole = ",".join(f"{each}=http://{self.at[each]}:2380" for each in self.named("etcd"))
            return (
                (
                    str(home() / "etcd"),
                    *(f"--name={name}", f"--data-dir={folder / 'data'}"),
                    *(f"--listen-client-urls=http://{at}:2379", "--log-level=warn"),
                    f"--advertise-client-urls=http://{at}:2379",
                    f"--listen-peer-urls=http://{at}:2380",
                    f"--initial-advertise-peer-urls=http://{at}:2380",
                    *(f"--initial-cluster={whole}", "--unsafe-no-fsync"),
                ),
                env,
            )
        if kind == "control":
            store = (
                ("--store", "etcd://" + ",".join(f"{self.at[e]}:2379" for e in self.named("etcd")))
                if self.etcd
                else ("--state", str(folder / "state"))
            )
            return (
                module_command(
                    "xds_server",
                    *("--fleet", str(self._run / "fleet.yaml"), *store, *tls),
                    *("--ads", f"{at}:18000", "--admin", f"{at}:18010"),
                    *("--metrics", f"{at}:18082", "--audit", str(folder / "audit")),
                    *("--log-format", "json"),
                ),
                env,
            )
        if kind == "picker":
            return (
                module_command(
                    "ext_proc",
                    *("--id", name, "--xds", servers, "--listen", f"{at}:18001", *tls),
                    *("--metrics", f"{at}:18081", "--group-listen", f"{at}:18091"),
                    *("--log-format", "json"),
                ),
                env,
            )
        if kind == "envoy":
            tls_of = BootstrapTls(
                *(Path(self._files("envoy")[each]) for each in ("certificate", "key")), ca, folder
            )
            for file, text in secrets_of(tls_of).items():
                (folder / file).write_text(text)
            text = render_bootstrap(name, "chaos", servers, f"{at}:19001", "delta", tls=tls_of)
            (folder / "envoy.yaml").write_text(text)
            return envoy_command(envoy_binary(), folder / "envoy.yaml", 1), envoy_environment()
        module = "support.chaos.real.replica"
        words = (name, at, str(self.receipts), str(folder / "dark"))
        path = f"{ROOT / 'tests'}{os.pathsep}{env['PYTHONPATH']}"
        return module_command(module, *words), {**env, "PYTHONPATH": path}
