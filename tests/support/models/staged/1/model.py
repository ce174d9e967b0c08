"""A decoupled model that sends messages at given times, as an engine sends tokens."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Implementation of Triton's Python model interface."""

    def execute(self, requests: list[Any]) -> None:
        """Answer each request from a thread of its own."""
        for each in requests:
            at_s = pb_utils.get_input_tensor_by_name(each, "at_s").as_numpy().tolist()
            sender = each.get_response_sender()
            threading.Thread(target=self._answer, args=(sender, at_s), daemon=True).start()

    def _answer(self, sender: Any, at_s: list[float]) -> None:
        begun = time.monotonic()
        for number, moment in enumerate(at_s):
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            text = np.array([f"message {number}".encode()], dtype=np.object_)
            last = number == len(at_s) - 1
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]), flags)
