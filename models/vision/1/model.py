"""A toy classifier: a fixed projection of the image, with a time per batch and per image."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils

CLASSES = 4


class TritonPythonModel:
    """Implementation of Triton's Python model interface."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the simulated times, milliseconds."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self._batch_s = _cost_ms(parameters, "batch_ms") / 1000
        self._image_s = _cost_ms(parameters, "image_ms") / 1000
        self._replica = os.environ.get("TIDEGATE_REPLICA", "").encode()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Classify one dynamic batch."""
        images = [pb_utils.get_input_tensor_by_name(r, "image").as_numpy() for r in requests]
        time.sleep(self._batch_s + self._image_s * sum(len(batch) for batch in images))
        return [self._answer(batch) for batch in images]

    def _answer(self, batch: Any) -> Any:
        # The mean brightness of four horizontal bands, as probabilities.
        bands = batch.reshape(len(batch), 3, CLASSES, -1).mean(axis=(1, 3))
        weights = np.exp(bands - bands.max(axis=1, keepdims=True))
        scores = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        replica = np.full((len(batch), 1), self._replica, dtype=np.object_)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("scores", scores), pb_utils.Tensor("replica", replica)]
        )


def _cost_ms(parameters: dict[str, dict[str, str]], name: str) -> float:
    text = os.environ.get(f"VISION_{name.upper()}", parameters[name]["string_value"])
    cost = float(text)
    if not 0 <= cost <= 60_000:  # noqa: PLR2004 - more than a minute is likely a typing error
        raise ValueError(f"{name} is {text}; it must be 0 to 60000 milliseconds")
    return cost
