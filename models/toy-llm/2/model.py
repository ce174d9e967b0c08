"""Version 2 of the toy model; its answers begin with ``v2: ``."""

from toyllm.backend import ToyModel


class TritonPythonModel(ToyModel):
    """The class that Triton's Python backend looks for."""
