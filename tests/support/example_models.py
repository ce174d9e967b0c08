"""The model repository of Triton's examples on the Python backend: names and shapes are theirs.

The examples (``src/python/examples`` of triton-inference-server/client) count on Triton's
``docs/examples/model_repository``, whose models are not part of any package.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

CODE: Final = Path(__file__).with_name("models") / "examples" / "model.py"
LABELS: Final = "labels.txt"

_ADDS: Final = """
input [
  {{ name: "INPUT0" data_type: {0} dims: [ 16 ] }},
  {{ name: "INPUT1" data_type: {0} dims: [ 16 ] }}
]
output [
  {{ name: "OUTPUT0" data_type: {0} dims: [ 16 ] }},
  {{ name: "OUTPUT1" data_type: {0} dims: [ 16 ] }}
]
"""
_SEQUENCE: Final = """
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 64 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] }
  ]
}
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_IDENTITY: Final = """
input [ {{ name: "INPUT0" data_type: {0} dims: [ {1} ] }} ]
output [ {{ name: "OUTPUT0" data_type: {0} dims: [ {1} ] }} ]
"""
_OUTPUT: Final = (
    'output [ {{ name: "{0}" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" }} ]'
)
_INCEPTION_INPUT: Final = (
    'input [ { name: "input" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 299, 299, 3 ] } ]'
)

EIGHT: Final[dict[str, tuple[str, int, str]]] = {
    "densenet_onnx": (
        "classify",
        0,
        'input [ { name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] '
        "} ]" + _OUTPUT.format("fc6_1"),
    ),
    "inception_graphdef": (
        "classify",
        8,
        _INCEPTION_INPUT + _OUTPUT.format("InceptionV3/Predictions/Softmax"),
    ),
    "simple": ("add", 8, _ADDS.format("TYPE_INT32")),
    "simple_dyna_sequence": ("sequence", 8, _SEQUENCE),
    "simple_identity": ("identity", 8, _IDENTITY.format("TYPE_STRING", -1)),
    "simple_int8": ("add", 8, _ADDS.format("TYPE_INT8")),
    "simple_sequence": ("sequence", 8, _SEQUENCE),
    "simple_string": ("add texts", 8, _ADDS.format("TYPE_STRING")),
}
"""What each model does, its largest batch and its tensors; as many as the examples count."""

OTHERS: Final[dict[str, tuple[str, int, str]]] = {
    "custom_identity_int32": ("identity", 8, _IDENTITY.format("TYPE_INT32", -1)),
    "preprocess_inception_ensemble": (
        "classify",
        8,
        'input [ { name: "INPUT" data_type: TYPE_STRING dims: [ 1 ] } ]' + _OUTPUT.format("OUTPUT"),
    ),
    "repeat_int32": (
        "repeat",
        0,
        """
model_transaction_policy { decoupled: true }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
""",
    ),
}
"""Models that only some examples need, in a repository of their own."""


def write(folder: Path, models: dict[str, tuple[str, int, str]]) -> tuple[str, ...]:
    """Write a repository; return the names of its models."""
    for name, (does, batch, tensors) in models.items():
        made = folder / name
        (made / "1").mkdir(parents=True)
        shutil.copy(CODE, made / "1" / "model.py")
        (made / "1" / "does").write_text(does, "utf-8")
        lines = [
            'backend: "python"',
            f"max_batch_size: {batch}",
            tensors.strip(),
            "instance_group [ { kind: KIND_CPU count: 1 } ]",
        ]
        (made / "config.pbtxt").write_text("\n".join(lines) + "\n", "utf-8")
        if does == "classify":
            (made / LABELS).write_text("".join(f"label {each}\n" for each in range(1000)), "utf-8")
    return tuple(models)
