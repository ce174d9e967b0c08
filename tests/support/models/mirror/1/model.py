"""A model that counts its inputs without reading them."""

from __future__ import annotations

from typing import Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Implementation of Triton's Python model interface."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with the number of its inputs."""
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("count", np.array([len(each.inputs())], dtype=np.int32))]
            )
            for each in requests
        ]
