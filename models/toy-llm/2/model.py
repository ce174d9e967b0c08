"""Version 2 of the toy model; its answers begin with ``v2: ``."""

from toyllm.backend import ToyModel


class TritonPythonModel(ToyModel):
    """Implementation of Triton's Python model interface."""
