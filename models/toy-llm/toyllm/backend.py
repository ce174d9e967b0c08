"""Adapter between the engine and Triton's Python backend, with one engine thread.

Rules:

1. One lock guards the engine and the table of pending requests; no thread sends or sleeps while
   it holds the lock.
2. Every request gets exactly one final response: its last token, an error, or an empty response
   if its client has disconnected.
3. An exception in the engine thread ends the process: clients then get an error at once instead
   of no response.
4. ``stream`` false: exactly one response. ``stream`` true: one response per token.
"""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Available in Triton's stub process only.
import triton_python_backend_utils as pb_utils

from toyllm.engine import Engine, FullError, RequestTooLargeError, Token
from toyllm.gauges import Gauges
from toyllm.settings import read_settings

DEFAULT_MAX_TOKENS = 16
CANCEL_CHECK_S = 0.05
"""Interval of the checks for cancelled requests, seconds; each is a call to Triton's process."""


@dataclass(slots=True, eq=False)
class _Pending:
    sender: Any
    stream: bool
    parts: list[str] = field(default_factory=list)


class ToyModel:
    """Base class of ``TritonPythonModel`` in both versions' ``model.py``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings and start the engine."""
        config = json.loads(args["model_config"])
        parameters = {
            name: value["string_value"] for name, value in config.get("parameters", {}).items()
        }
        version = args["model_version"]
        self._settings = read_settings(parameters, os.environ)
        self._replica = os.environ.get("TIDEGATE_REPLICA", "")
        self._engine = Engine(self._settings, version)
        self._gauges = Gauges(pb_utils, args["model_name"], version)
        self._pending: dict[int, _Pending] = {}
        self._next_key = 0
        self._stopping = False
        self._wake = threading.Condition()
        self._stopped = threading.Event()
        self._gauges.set(self._engine.load(), time.time_ns() // 1000)
        self._threads = [
            threading.Thread(target=self._run, name="engine", daemon=True),
            threading.Thread(target=self._report, name="gauges", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Queue the requests and return immediately, as decoupled models do."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._submit(request, sender)
            except RequestTooLargeError as error:
                _fail(sender, str(error), pb_utils.TritonError.INVALID_ARG)
            except FullError as error:
                _fail(sender, str(error), pb_utils.TritonError.UNAVAILABLE)

    def finalize(self) -> None:
        """Stop the engine; running requests get an error."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for pending in self._pending.values():
            _fail(pending.sender, "the model is being unloaded", pb_utils.TritonError.UNAVAILABLE)
        self._pending.clear()

    def _submit(self, request: Any, sender: Any) -> None:
        prompt = _scalar(request, "text_input", b"")
        text = prompt.decode("utf-8", "replace") if isinstance(prompt, bytes) else str(prompt)
        max_tokens = int(_scalar(request, "max_tokens", DEFAULT_MAX_TOKENS))
        stream = bool(_scalar(request, "stream", False))
        with self._wake:
            key = self._next_key
            self._engine.submit(key, text, max_tokens)
            self._next_key += 1
            self._pending[key] = _Pending(sender, stream)
            self._wake.notify_all()

    def _run(self) -> None:
        try:
            self._drive()
        except Exception:  # noqa: BLE001 - after any error, no request may wait for ever
            pb_utils.Logger.log_error(f"the engine broke:\n{traceback.format_exc()}")
            # Triton answers 500 if its stub is gone; a stub without an engine would never respond.
            os._exit(1)

    def _drive(self) -> None:
        due = time.monotonic()
        next_check = due + CANCEL_CHECK_S
        while True:
            with self._wake:
                if self._engine.idle and not self._stopping:
                    self._wake.wait_for(lambda: self._stopping or not self._engine.idle)
                    due = time.monotonic()
                if self._stopping:
                    return
                iteration = self._engine.step()
            # Iterations follow each other without drift; a late engine does not catch up.
            due = max(due, time.monotonic() - 0.005) + iteration.seconds
            time.sleep(max(0.0, due - time.monotonic()))
            for token in iteration.tokens:
                self._deliver(token)
            if time.monotonic() >= next_check:
                self._drop_cancelled()
                next_check = time.monotonic() + CANCEL_CHECK_S

    def _deliver(self, token: Token) -> None:
        with self._wake:
            pending = self._pending.pop(token.key) if token.last else self._pending[token.key]
        self._gauges.count(token)
        if pending.stream:
            text = token.text
        else:
            pending.parts.append(token.text)
            if not token.last:
                return
            text = "".join(pending.parts)
        response = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_)),
                pb_utils.Tensor("cached_tokens", np.array([token.cached_tokens], dtype=np.int32)),
                pb_utils.Tensor("input_tokens", np.array([token.input_tokens], dtype=np.int32)),
                pb_utils.Tensor("replica", np.array([self._replica.encode()], dtype=np.object_)),
            ]
        )
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if token.last else 0
        pending.sender.send(response, flags=flags)

    def _drop_cancelled(self) -> None:
        # Only this thread removes requests, so a copy of the table cannot contain a closed sender.
        with self._wake:
            candidates = list(self._pending.items())
        for key, pending in candidates:
            if pending.sender.is_cancelled():
                with self._wake:
                    self._engine.cancel(key)
                    del self._pending[key]
                pending.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _report(self) -> None:
        while not self._stopped.wait(self._settings.stats_period_ms / 1000):
            with self._wake:
                load = self._engine.load()
            self._gauges.set(load, time.time_ns() // 1000)


def _scalar(request: Any, name: str, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    values = tensor.as_numpy().reshape(-1)
    return values[0] if values.size else default


def _fail(sender: Any, message: str, code: int) -> None:
    sender.send(
        pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)),
        flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    )
