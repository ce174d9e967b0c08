"""What an examination finds."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is."""

    FAULT = "fault"
    """Requests fail, or a change cannot take effect."""
    RISK = "risk"
    """It works now, and fails under load, later, or after a restart."""


class Diagnosis(NamedTuple):
    """One thing that is not as it should be."""

    level: Level
    about: str
    """What it is about: a replica's id, a file, ``this machine``, an address."""
    says: str
    """What is wrong, as a sentence without its subject."""
    fix: str
    """What to do, in the imperative."""


def fault(about: str, says: str, fix: str) -> Diagnosis:
    """Return a finding of level ``FAULT``."""
    return Diagnosis(Level.FAULT, about, says, fix)


def risk(about: str, says: str, fix: str) -> Diagnosis:
    """Return a finding of level ``RISK``."""
    return Diagnosis(Level.RISK, about, says, fix)
