"""Version 1 of the toy model; its answers begin with ``v1: ``."""

from toyllm.backend import ToyModel


class TritonPythonModel(ToyModel):
    """The class that Triton's Python backend looks for."""
