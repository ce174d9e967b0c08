"""Recorder of what a real Triton tells of its models, over HTTP and gRPC.

``PYTHONPATH=tests:. python -m support.record_placement FILE`` starts one replica in explicit mode
and writes its repository index and its answers to requests for models that it lacks, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
from tritonclient.grpc import service_pb2

from support.placed_models import BODY, CONFIG, PlacedModels
from support.record_mistakes import packed
from support.traffic import vision_inputs
from tidegate.stack.tritons.fleet import Tritons

COMMAND: Final = "PYTHONPATH=tests:. python -m support.record_placement placement.json"
SERVICE: Final = "/inference.GRPCInferenceService/"
NAMES: Final = ("loaded", "unloaded", "never", "broken")
MISSING: Final = ("unloaded", "never", "unknown")


async def _infer_http(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.post(url, data=BODY) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        headers.pop("content-length", None)
        return {
            "status": answer.status,
            "headers": headers,
            "body": packed(await answer.read()),
        }


async def _infer_grpc(channel: grpc.aio.Channel, model: str) -> dict[str, Any]:
    (image,) = vision_inputs()
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.append(image._get_tensor())
    request.raw_input_contents.append(image._get_content())
    call = channel.unary_unary(f"{SERVICE}ModelInfer")(request.SerializeToString())
    code = await call.code()
    return {"grpc_status": code.value[0], "message": await call.details()}


async def record() -> dict[str, Any]:
    """Return everything that is recorded."""
    async with (
        aiohttp.ClientSession() as http,
        Tritons(1, models=("vision",)) as tritons,
        PlacedModels(http, tritons, NAMES) as models,
    ):
        (replica,) = tritons.replicas
        url = f"{replica.http_url}/v2"
        broken = tritons.run.path / "repositories" / replica.name / "broken" / "config.pbtxt"
        broken.write_text(CONFIG.replace("vision", "nowhere"), "utf-8")
        await models.change({(name, replica.name): True for name in ("loaded", "unloaded")})
        async with http.post(f"{url}/repository/models/broken/load") as answer:
            assert answer.status != 200
        await models.change({("unloaded", replica.name): False})
        await asyncio.sleep(2)
        async with http.post(f"{url}/repository/index", data=b"{}") as answer:
            index = packed(await answer.read())
        async with grpc.aio.insecure_channel(replica.grpc) as channel:
            told = await channel.unary_unary(f"{SERVICE}RepositoryIndex")(b"")
            over_grpc = {name: await _infer_grpc(channel, name) for name in MISSING}
        over_http = {
            name: await _infer_http(http, f"{url}/models/{name}/infer") for name in MISSING
        }
        version = f"{url}/models/loaded/versions/9/infer"
        over_http["version"] = await _infer_http(http, version)
        return {
            "command": COMMAND,
            "index": index,
            "grpc_index": packed(told),
            "http": over_http,
            "grpc": over_grpc,
        }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(record()), indent=1) + "\n", "utf-8")
