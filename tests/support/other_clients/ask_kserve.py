"""Adds and subtracts with KServe's own client: over REST and over gRPC."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from kserve import InferInput, InferRequest
from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig


def request() -> InferRequest:
    """Return a request."""
    inputs = []
    for name in ("INPUT0", "INPUT1"):
        tensor = InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), dtype=np.int32), binary_data=False)
        inputs.append(tensor)
    return InferRequest("simple", inputs)


async def main(address: str) -> None:
    """Ask both ways."""
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    url = f"http://{address}"
    # Its `is_server_live` and `is_server_ready` expect JSON, which a Triton does not send either.
    assert await rest.is_model_ready(url, "simple")
    answer = await rest.infer(url, request(), model_name="simple")
    assert answer.outputs[0].as_numpy().tolist() == [[2] * 16]
    over_grpc = InferenceGRPCClient(address)
    assert await over_grpc.is_server_live()
    assert await over_grpc.is_model_ready("simple")
    answer = await over_grpc.infer(request())
    assert answer.outputs[0].as_numpy().tolist() == [[2] * 16]
    print("PASS")  # noqa: T201 - the test reads it


asyncio.run(main(sys.argv[1]))
