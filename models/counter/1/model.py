"""A stateful model that returns the running sum of each sequence."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils

MAX_SEQUENCES = 4096
"""Maximum number of sequences; the oldest are dropped, as Triton reaps idle ones silently."""


class TritonPythonModel:
    """Implementation of Triton's Python model interface."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002 - Triton's signature
        """Start without sequences."""
        self._totals: OrderedDict[int | str, int] = OrderedDict()
        self._replica = np.array(
            [os.environ.get("TIDEGATE_REPLICA", "").encode()], dtype=np.object_
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Add the value of each request to its sequence."""
        return [self._add(request) for request in requests]

    def _add(self, request: Any) -> Any:
        sequence = request.correlation_id()
        value = int(_first(request, "value"))
        total = (0 if _first(request, "START") else self._totals.pop(sequence, 0)) + value
        if _first(request, "END"):
            self._totals.pop(sequence, None)
        else:
            self._totals[sequence] = total
            if len(self._totals) > MAX_SEQUENCES:
                self._totals.popitem(last=False)
        # The tensor is INT32: the sum wraps around.
        wrapped = np.array([total], dtype=np.int64).astype(np.int32)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("total", wrapped), pb_utils.Tensor("replica", self._replica)]
        )


def _first(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
