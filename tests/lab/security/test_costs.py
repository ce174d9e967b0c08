"""Requests that would cost a picker or a Triton much more than their sender, through Envoy."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

from support.costly import BODIES, GRPC, INFER
from tidegate_api.names import REASON_HEADER

MIB = 2**20
BOMB = 160 * MIB
"""Bytes that the bomb of 160 KB inflates to; the attack had 300."""
PATH = "/v2/models/counter/infer"
REFUSED = ("125 KB of lists in 588 bytes of gzip", "lists", "gRPC, fields", "gRPC, inputs")


def bomb() -> bytes:
    """Return zeros, as gzip."""
    packer = zlib.compressobj(wbits=31)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(BOMB // MIB)) + packer.flush()


def memory(tritons) -> list[int]:
    """Return the resident memory of each Triton, in bytes."""
    pids = [tritons.supervisor.pid(each.name) for each in tritons.replicas]
    return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids]


async def test_a_gzip_bomb_reaches_no_triton(http, stack, tritons):
    """No Triton inflates it: one grew from 38 to 640 MiB."""
    before = memory(tritons)
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    packed = bomb()
    async with http.post(stack.http_url + PATH, data=packed, headers=headers) as answer:
        assert (answer.status, answer.headers.get(REASON_HEADER)) == (413, "too-large")
        assert "max_inflated_bytes" in (await answer.json(content_type=None))["error"]
    grown = [after - first for first, after in zip(before, memory(tritons), strict=True)]
    assert max(grown) < 32 * MIB


async def test_an_honest_compressed_body_is_served(http, stack):
    """What a client of Triton compresses is within the bound."""
    body = gzip.compress(b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT32","data":[1]}]}')
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    async with http.post(stack.http_url + PATH, data=body, headers=headers) as answer:
        assert REASON_HEADER not in answer.headers, "Triton's own error, as it has no such input"


@pytest.mark.parametrize("name", REFUSED)
async def test_what_costs_too_much_to_read_is_refused(http, stack, name):
    """Its reason says so, in the caller's dialect."""
    attack = BODIES[name]
    over_grpc = attack.path == GRPC
    path = GRPC if over_grpc else attack.path.replace(INFER, PATH)
    kind = "application/grpc" if over_grpc else "application/json"
    headers = {**attack.headers, "content-type": kind, "te": "trailers"}
    async with http.post(stack.http_url + path, data=attack.body, headers=headers) as answer:
        assert answer.headers.get(REASON_HEADER) == "too-complex"
        if over_grpc:
            assert answer.headers["grpc-status"] == "3"
        else:
            assert answer.status == 400
            assert "arrays and objects" in (await answer.json(content_type=None))["error"]
