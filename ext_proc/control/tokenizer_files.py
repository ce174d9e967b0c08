"""Loads tokenizers from local files (Hugging Face ``tokenizer.json``), off the request path.

Rules:

1. A file is read once, in a thread, when a pool first names it; never from the network. A file that
   changes is not read again: use another name for the new one.
2. A file that cannot be read is logged once, with the pool and the fix, and has no tokenizer: that
   pool's prompts are split by characters. It is tried again when the pools' file names change.
3. At most `MAX_TOKENIZERS` files of at most `MAX_FILE_BYTES` each are loaded; those that no pool
   names any longer are dropped.
4. If a tokenizer raises any exception on a text, the text has no ids.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenizers import Tokenizer as HuggingFace

    from ext_proc.requests import Tokenizer
    from ext_proc.routing.values.pool import Pool

MAX_TOKENIZERS: Final = 8
MAX_FILE_BYTES: Final = 128 * 2**20
"""Files of today's vocabularies of 256,000 tokens have about 35 MB."""

_log = structlog.stdlib.get_logger("ext_proc.control.tokenizer_files")


class TokenizerError(Exception):
    """A tokenizer cannot be loaded; the message states the reason and the remedy."""


class FileTokenizer:
    """A ``tokenizer.json`` with the interface that request readers use.

    Args:
        loaded: The ``tokenizers`` package's object.
    """

    def __init__(self, loaded: HuggingFace) -> None:
        # A file may configure truncation or padding, which would distort a prompt.
        loaded.no_truncation()
        loaded.no_padding()
        self._loaded = loaded

    def boundaries(self) -> tuple[str, ...]:
        """Return the added tokens that are found in any text and take nothing before them."""
        added = self._loaded.get_added_tokens_decoder().values()
        return tuple(
            each.content
            for each in added
            if not (each.lstrip or each.single_word or each.normalized)
        )

    def encode(self, text: str, *, special: bool = True) -> Sequence[int] | None:
        """Return the ids, with special tokens that the file adds or not; ``None`` on an error."""
        try:
            ids: list[int] = self._loaded.encode(text, add_special_tokens=special).ids
        except Exception:  # noqa: BLE001 - rule 4: the package raises bare exceptions
            return None
        return ids


def load(path: str) -> Tokenizer:
    """Load a tokenizer file; this takes up to a second of CPU.

    Raises:
        TokenizerError: The package or the file is missing, or the file is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer as HuggingFace  # noqa: PLC0415 - an extra
    except ImportError:
        raise TokenizerError(
            "the package `tokenizers` is missing; install tidegate[tokenizers] with the picker"
        ) from None
    try:
        size = Path(path).stat().st_size
        if size > MAX_FILE_BYTES:
            raise TokenizerError(f"the file has {size} bytes; at most {MAX_FILE_BYTES} are read")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(
            f"the file cannot be read ({error}); put the model's tokenizer.json there"
        ) from None
    try:
        return FileTokenizer(HuggingFace.from_str(text))
    except Exception as error:  # noqa: BLE001 - the package raises bare exceptions
        raise TokenizerError(
            f"the file is not a tokenizer ({error}); put the model's tokenizer.json there"
        ) from None


class TokenizerFiles:
    """The tokenizers that pools name, by path; the module states the rules.

    Args:
        read: Loads one file; runs in a thread and raises only ``TokenizerError``.
    """

    def __init__(self, read: Callable[[str], Tokenizer] = load) -> None:
        self._read = read
        self._wanted: dict[str, str] = {}
        """First pool that names the file, by path."""
        self._failed: set[str] = set()
        self._changed = asyncio.Event()
        self.ready: dict[str, Tokenizer] = {}
        """Loaded tokenizers by path."""

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Set the pools: `run` soon loads the files that they name; other files are dropped."""
        wanted: dict[str, str] = {}
        for pool in pools.values():
            if pool.tokenizer:
                wanted.setdefault(pool.tokenizer, pool.name)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._failed.clear()
        for path in self.ready.keys() - wanted.keys():
            del self.ready[path]
        self._changed.set()

    async def run(self) -> None:
        """Load files as pools name them, one after the other, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (path := self._next()) is not None:
                await self._load(path)

    def _next(self) -> str | None:
        """Return the next path to load; ``None`` if all are loaded."""
        for path in self._wanted:
            if path not in self.ready and path not in self._failed:
                return path
        return None

    async def _load(self, path: str) -> None:
        if len(self.ready) >= MAX_TOKENIZERS:
            most = f"{MAX_TOKENIZERS} other files are loaded, the maximum; let pools share files"
            self._give_up(path, most)
            return
        try:
            tokenizer = await asyncio.to_thread(self._read, path)
        except TokenizerError as error:
            self._give_up(path, str(error))
            return
        if path in self._wanted:
            self.ready[path] = tokenizer
            _log.info("tokenizer_loaded", pool=self._wanted[path], path=path)

    def _give_up(self, path: str, reason: str) -> None:
        if path not in self._wanted:
            return
        self._failed.add(path)
        _log.warning(
            "tokenizer_not_loaded",
            pool=self._wanted[path],
            path=path,
            reason=reason,
            instead="prompts are split into blocks by characters",
        )
