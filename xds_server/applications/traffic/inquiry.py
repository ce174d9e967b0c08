"""What pickers know of a single request: values. Pure."""

from __future__ import annotations

from typing import NamedTuple


class TooManyInquiries(Exception):  # noqa: N818 - reads as the sentence it is
    """Too many questions wait for answers."""


class ToldRequest(NamedTuple):
    """What a picker knows of a request."""

    picker: str
    records: tuple[str, ...]
    """JSON objects, the newest first."""
    since_s: float
    """Age of the oldest decision that it remembers."""


class FoundRequest(NamedTuple):
    """What all pickers know of a request."""

    told: tuple[ToldRequest, ...]
    silent: tuple[str, ...]
    """Pickers that did not answer in time."""
