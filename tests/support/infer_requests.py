"""Framed ModelInferRequests and their tensors."""

from __future__ import annotations

import struct

from tritonclient.grpc import service_pb2

from ext_proc.requests.forms.grpc_infer import read_grpc
from ext_proc.routing.values.request import Features, Form

HEAD = Features(Form.GRPC_INFER)


def frame(message, flag: int = 0) -> bytes:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return struct.pack(">BI", flag, len(data)) + data


def read(message, headers=None, *, complete: bool = True, head: Features = HEAD) -> Features:
    body = message if isinstance(message, bytes) else frame(message)
    return read_grpc(head.changed(), headers or {}, body, complete=complete)


def request(**fields):
    return service_pb2.ModelInferRequest(model_name="m", **fields)


def tensor(name: str, datatype: str, **fields):
    fields = {"shape": [1], **fields}
    return service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, **fields)
