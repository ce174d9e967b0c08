"""One emulated replica as a process: ``python -m bench.emulator --http 127.0.0.1:9001``.

``--control`` is the control port of the bench, ``--grpc`` serves KServe, ``--scale`` is the number
of emulated seconds per second.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from dataclasses import replace

import uvloop

from bench.emulator.http import CONFIGS, ControlPort, DataPort
from bench.emulator.pages import PAGES
from bench.emulator.replica import EmulatedReplica
from bench.engine import EngineConfig


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def run(args: argparse.Namespace) -> None:
    """Serve until the process is terminated."""
    engine = replace(
        args.engine,
        cache_blocks=args.cache_blocks or args.engine.cache_blocks,
        prefill_rate=args.prefill_rate or args.engine.prefill_rate,
        cache_planned=args.cache_planned,
    )
    replica = EmulatedReplica(engine, args.scale)
    loop = asyncio.get_running_loop()
    data, control = (
        DataPort(replica, args.page, early_headers=args.early_headers, config=args.config),
        ControlPort(replica),
    )
    await loop.create_server(data.protocol, *_split(args.http), backlog=1024)
    if args.control:
        await loop.create_server(control.protocol, *_split(args.control))
    if args.grpc:
        # Import gRPC only if needed: it takes 30 MB.
        from bench.emulator.kserve import serve  # noqa: PLC0415

        args.server = await serve(replica, args.grpc)
    gc.freeze()
    await asyncio.Event().wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    usual = EngineConfig()
    parser.add_argument("--http", required=True, help="ip:port for requests")
    parser.add_argument("--control", default="", help="ip:port of the control port")
    parser.add_argument("--grpc", default="", help="ip:port for KServe gRPC")
    parser.add_argument("--page", choices=sorted(PAGES), default="vllm", help="metrics page")
    parser.add_argument(
        "--early-headers", action="store_true", help="send a stream's headers at once, as vLLM does"
    )
    parser.add_argument("--config", choices=CONFIGS, default="", help="what Triton's API tells")
    parser.add_argument("--scale", type=float, default=1.0, help="engine seconds per second")
    parser.add_argument(
        "--engine",
        type=lambda text: EngineConfig(**json.loads(text)),
        default=usual,
        help="the engine's parameters that are not the usual ones, as JSON",
    )
    parser.add_argument("--cache-blocks", type=int, help="in place of the engine's")
    parser.add_argument(
        "--cache-planned",
        action=argparse.BooleanOptionalAction,
        default=usual.cache_planned,
        help="share blocks once planned, as vLLM does",
    )
    parser.add_argument("--prefill-rate", type=float, help="in place of the engine's")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
