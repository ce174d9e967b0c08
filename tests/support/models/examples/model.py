"""Stands in for the models that Triton's examples ask for; the file ``does`` says what it does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from collections.abc import Iterable


class TritonPythonModel:
    """Implementation of Triton's Python model interface."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add tensors where an example has replaced the whole configuration."""
        known = {each["name"] for each in config.as_dict()["input"]}
        if _does() == "add" and not known:
            for number in (0, 1):
                shape = {"data_type": "TYPE_INT32", "dims": [16]}
                config.add_input({"name": f"INPUT{number}", **shape})
                config.add_output({"name": f"OUTPUT{number}", **shape})
        return config

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002 - Triton's signature
        """Read what the model does."""
        self._does = _does()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request; ``repeat`` answers by the request's sender."""
        if self._does == "repeat":
            for request in requests:
                _repeat(request)
            return [None] * len(requests)
        return [pb_utils.InferenceResponse(list(self._answer(each))) for each in requests]

    def _answer(self, request: Any) -> Iterable[Any]:
        if self._does == "classify":
            count = request.inputs()[0].as_numpy().shape[0]
            scores = np.tile(np.linspace(0, 1, 1000, dtype=np.float32), (count, 1))
            (name,) = request.requested_output_names()
            yield pb_utils.Tensor(name, scores)
        elif self._does == "sequence":
            # As Triton's own example of a sequence: 1 is added at the start.
            yield pb_utils.Tensor("OUTPUT", _input(request, "INPUT") + _input(request, "START"))
        elif self._does == "identity":
            yield pb_utils.Tensor("OUTPUT0", _input(request, "INPUT0"))
        else:
            one, two = _input(request, "INPUT0"), _input(request, "INPUT1")
            if self._does == "add texts":
                one, two = one.astype(np.int64), two.astype(np.int64)
            for name, value in (("OUTPUT0", one + two), ("OUTPUT1", one - two)):
                texts = value.astype(str).astype(object) if self._does == "add texts" else value
                yield pb_utils.Tensor(name, texts)


def _does() -> str:
    return Path(__file__).with_name("does").read_text("utf-8")


def _repeat(request: Any) -> None:
    """Answer once for each element of ``IN``, after its ``DELAY`` in milliseconds."""
    sender = request.get_response_sender()
    delays = _input(request, "DELAY").reshape(-1)
    for value, delay in zip(_input(request, "IN").reshape(-1), delays, strict=True):
        time.sleep(float(delay) / 1e6)  # a thousandth of it, so that the example is quick
        out = pb_utils.Tensor("OUT", np.array([value], dtype=np.int32))
        sender.send(pb_utils.InferenceResponse([out]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _input(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()
