"""Tells of each request when it ran: from when to when, monotonic seconds of the machine."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils

LASTS_S = 0.3


class TritonPythonModel:
    """Implementation of Triton's Python model interface."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch after ``LASTS_S``."""
        begin = time.monotonic()
        time.sleep(LASTS_S)
        span = pb_utils.Tensor("SPAN", np.array([[begin, time.monotonic()]], np.float64))
        return [pb_utils.InferenceResponse([span]) for _ in requests]
