"""Recorder of a real Triton's answers to requests with mistakes.

``PYTHONPATH=tests:. python -m support.record_mistakes FILE`` starts one replica with the project's
models, sends each of `MISTAKES`, and writes requests and answers as JSON. A request that kills the
server is recorded without an answer (``died``), and the server is started anew.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import grpc

from support.mistakes.every import MISTAKES
from tidegate.stack.assets import asset
from tidegate.stack.tritons.fleet import Tritons

if TYPE_CHECKING:
    from support.mistakes.request import Mistake

COMMAND: Final = "PYTHONPATH=tests:. python -m support.record_mistakes mistakes.json"
VOLATILE: Final = frozenset({"date", "content-length"})
"""Headers of answers that are not recorded."""
MOST_BYTES: Final = 2000
"""Longer bodies are recorded compressed."""
MODELS: Final = ("counter", "vision", "toy-llm", "mirror")
TIMEOUT_S: Final = 10.0
SETTLE_S: Final = 0.3
"""Time that a dying server has to end, seconds."""


def packed(data: bytes) -> dict[str, Any]:
    """Return bytes ready for JSON: as text where they are text, long ones compressed."""
    if len(data) > MOST_BYTES:
        return {"zlib": base64.b64encode(zlib.compress(data)).decode()}
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def unpacked(data: dict[str, Any]) -> bytes:
    """Return the bytes that ``packed`` wrote."""
    if "text" in data:
        text: str = data["text"]
        return text.encode()
    if "zlib" in data:
        return zlib.decompress(base64.b64decode(data["zlib"]))
    return base64.b64decode(data["base64"])


async def _over_http(address: str, mistake: Mistake) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as http,
        http.post(
            f"http://{address}{mistake.path}", data=mistake.body, headers=mistake.headers
        ) as answer,
    ):
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return {
            "status": answer.status,
            "headers": {name: headers[name] for name in sorted(headers.keys() - VOLATILE)},
            "body": packed(await answer.read()),
        }


async def _over_grpc(address: str, mistake: Mistake) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(mistake.path)
        try:
            answer = await call(mistake.body, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            status: int = error.code().value[0]
            return {"grpc_status": status, "grpc_message": error.details()}
        return {"grpc_status": 0, "body": packed(answer)}


async def _ask(tritons: Tritons, mistake: Mistake) -> dict[str, Any]:
    replica = tritons.replica("r1")
    way, address = (_over_grpc, replica.grpc) if mistake.is_grpc else (_over_http, replica.http)
    try:
        answer = await way(address, mistake)
    except (aiohttp.ClientError, TimeoutError) as error:
        answer = {"broke": type(error).__name__}
    if answer.get("broke") or answer.get("grpc_status") == grpc.StatusCode.UNAVAILABLE.value[0]:
        await asyncio.sleep(SETTLE_S)
        if not tritons.supervisor.running("r1"):
            answer = {"died": True}
    return answer


async def _record_alive(models: Path, mistakes: list[Mistake], found: list[dict[str, Any]]) -> str:
    """Record until all of ``mistakes`` are, or the server dies; return the server's version."""
    async with Tritons(1, models=MODELS, source=models) as tritons, aiohttp.ClientSession() as http:
        async with http.get(tritons.replica("r1").http_url + "/v2") as answer:
            server = await answer.json()
        for mistake in mistakes[len(found) :]:
            answered = await _ask(tritons, mistake)
            found.append(mistake.recorded(packed(mistake.body)) | {"answer": answered})
            if "died" in answered:
                break
    return f"{server['name']} {server['version']}"


async def record() -> str:
    """Record all mistakes and return the JSON document."""
    found: list[dict[str, Any]] = []
    mistakes = list(MISTAKES)
    with tempfile.TemporaryDirectory() as folder:
        for source in (asset("models"), Path(__file__).with_name("models")):
            for model in MODELS:
                if (source / model).exists():
                    (Path(folder) / model).symlink_to(source / model)
        while len(found) < len(mistakes):
            server = await _record_alive(Path(folder), mistakes, found)
    document = {"server": server, "command": COMMAND, "mistakes": found}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(asyncio.run(record()))
