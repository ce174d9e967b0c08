"""Logging setup of all Tidegate processes: events with key-value pairs, on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def quiet_grpc(environment: MutableMapping[str, str]) -> None:
    """Let gRPC log errors only: by default each failed handshake of a peer is a line.

    Args:
        environment: The process environment, before gRPC is loaded; children inherit it.
    """
    environment.setdefault("GRPC_VERBOSITY", "ERROR")


class _Stderr:
    """Standard error, without an error where its disk is full: what logs goes on in any case."""

    def write(self, text: str) -> None:
        """Write a line, or lose it."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush, or lose what is left."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def configure(log_format: LogFormat = "console", level: LogLevel = "info") -> None:
    """Set up logging for this process; a later call replaces an earlier one.

    Args:
        log_format: ``console`` for reading, ``json`` for processing (one object per line).
        level: Events below it are dropped before they are built.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
        errors: structlog.typing.Processor = structlog.processors.dict_tracebacks
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        errors = structlog.processors.StackInfoRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            errors,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # One write per line: the workers of a picker share their stderr.
        logger_factory=structlog.WriteLoggerFactory(_Stderr()),  # type: ignore[arg-type]  # a part
        cache_logger_on_first_use=False,
    )
    # Libraries log through the standard module; their warnings go to the same stream.
    logging.basicConfig(
        stream=sys.stderr,
        level=max(number, logging.WARNING),
        format="%(asctime)s [%(levelname)s] %(name)s: %(message)s",
        force=True,
    )
