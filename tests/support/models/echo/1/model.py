"""A model that answers with what Triton read of its request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Implementation of Triton's Python model interface."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with a JSON text."""
        return [self._told(each) for each in requests]

    def _told(self, request: Any) -> Any:
        inputs = []
        for tensor in request.inputs():
            values = tensor.as_numpy()
            if values.dtype == np.object_:
                size = sum(4 + len(each) for each in values.reshape(-1))
            else:
                size = values.nbytes
            inputs.append([tensor.name(), list(values.shape), size])
        told = {
            "id": request.request_id().encode("utf-8", "surrogateescape").hex(),
            "sequence": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "inputs": inputs,
        }
        text = np.array([json.dumps(told).encode()], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("said", text)])
