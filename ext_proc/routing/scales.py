"""The scale of each pool's text, learned from engines' own counts of prompt tokens. Pure.

Rules:

1. Engines tell tokens in three ways: an answer tells those of its prompt (``told``, where the pool
   has ``telemetry.usage``), or the page has a counter of all prompts' tokens (``observe``), or at
   least the part of the KV cache that running requests hold (``holdings``; rule 9). Answers are
   preferred: after one, counters are ignored for ``TRUSTED`` prompts.
2. A counter is compared by windows: its growth between two pages against the prompts that this
   picker sent to the replica and whose answers began (or ended) between them. A window ends with a
   page once it has ``FIRST`` prompts, later more, up to ``FULL``, because its edges are not sharp:
   engines count a prompt about a second before the log tells of its answer. Where they count
   prompts, too, the mean tokens of a prompt are compared, so that the edges do not matter; else the
   first window is dropped, since what one lacks the next one has.
3. Other clients of an engine are told by its counter of prompts: ``T = t * (x + d * m)``, where
   ``T`` are the tokens, ``t`` those of a byte, ``x`` the bytes of our prompts and of ``m`` further
   prompts of our mean length, and ``d`` the bytes by which these differ from ours. ``t`` and ``d``
   are fitted by weighted least squares in which ``d`` is held near 0, less with each window. So
   other pickers with the same traffic change nothing, and clients with other prompts are told apart
   as far as their share varies. Without such a counter all prompts count as ours.
4. A counter that fell, or a replica that restarted, begins a new window. While a counter stands
   still a window does not end; once it has stood still for ``STALE_S`` the window is dropped.
5. Of prompts of token ids, and of those that a tokenizer counted, the tokens are taken off. A
   prompt that was not read to its end is taken to be as long as its body, or as what was read.
6. The prior weighs one prompt at first and soon nothing, and earlier windows fade with ``MEMORY``
   prompts. A window moves the estimate by a factor of ``CLIP`` at most, and the estimate is within
   ``LEAST`` and ``MOST``.
7. A new scale is put in force when it differs by ``STEP`` from the one that is: what is measured in
   tokens is converted then (``on_change``).
8. Models are told apart if the pool lists them. The pool as a whole has a scale too, for requests
   of other names.
9. Of a page without a counter the tokens in the KV cache are compared with the prompts in flight,
   as long as nothing is queued, the engine runs no others' requests, and no answer or counter has
   told the pool's scale. Such a scale is that of the pool as a whole.

Memory: at most ``MAX_SENT`` prompts without a count, and a scale for each model of each pool.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.holdings import Holdings
from ext_proc.routing.values.scale import BYTES_PER_TOKEN, LEAST, MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.request import Request

FIRST: Final = 4
"""Prompts of the first window."""
FULL: Final = 16
"""Prompts from which on a window is long enough. Its edges are not sharp, but what one window has
too much the next one lacks."""
MEMORY: Final = 512
CLIP: Final = 4.0
MOST_OTHERS: Final = 64.0
"""How many times as long as ours the prompts of other clients may be before they are clipped."""
HELD: Final = 16.0
"""Prompts after which ``d`` is held near 0 by as much as one window."""
STEP: Final = 0.05
STALE_S: Final = 30.0
TRUSTED: Final = 256
MAX_SENT: Final = 16_384
SLACK: Final = 4.0
"""Prompts by which an engine's count may exceed ours without being others'; also one in ten."""
MOST_UNREAD: Final = 8
"""Factor between a body and the part of a prompt that was read, up to which its rest is taken to be
prompt, too."""
MAX_DIGITS: Final = 12
WHOLE: Final = ""
"""The name of a pool's scale that is not of one model."""


def prompt_bytes(request: Request) -> int:
    """Return the bytes of a request's prompt.

    Of a prompt that was read in part they are those of the body, unless these are unknown, or so
    many that it may consist of other things: then those that were read.
    """
    features = request.features
    size = len(features.prompt or b"")
    if not features.prompt_is_partial:
        return size
    told = request.headers.get("content-length", "")
    if not told.isascii() or not told.isdigit() or len(told) > MAX_DIGITS:
        return size
    return int(told) if size < int(told) <= MOST_UNREAD * size else size


class _Sent(NamedTuple):
    """A prompt that was sent."""

    pool: str
    model: str
    size: int
    """Bytes of its text, 0 if its tokens are known."""
    tokens: int
    """Its tokens if they are known, else 0."""
    counted: bool
    """Whether it is in a window already."""


class Scale:
    """The estimate of one model in one pool."""

    __slots__ = (
        "_ii",
        "_it",
        "_xi",
        "_xt",
        "_xx",
        "by_cache",
        "force",
        "mean",
        "prompts",
        "trusted",
    )

    def __init__(self) -> None:
        self.force = BYTES_PER_TOKEN
        """Bytes per token in force."""
        self.prompts = 0
        """Prompts that it was learned from."""
        self.mean = 0.0
        """Mean bytes of a prompt of ours."""
        self.trusted = 0
        """Prompts for which counters are ignored."""
        self.by_cache = False
        """It was learned from what caches hold."""
        self._xx = self._xi = self._ii = self._xt = self._it = 0.0

    def learn(self, size: float, prompts: float, others: float, tokens: float) -> bool:
        """Take a window.

        Args:
            size: Bytes of our prompts in it.
            prompts: Number of our prompts.
            others: Number of further prompts that the engine counted.
            tokens: Tokens that it counted.

        Returns:
            Whether a new scale is in force.
        """
        if prompts:
            known = min(self.prompts, MEMORY)
            self.mean += (size - self.mean * prompts) / (known + prompts)
        if not self.mean or size + others <= 0.0:
            return False
        x = size + self.mean * others
        if self.prompts:
            expected = x / self.force
            most = expected + MOST_OTHERS * self.mean * others / self.force
            tokens = min(max(tokens, expected / CLIP), most * CLIP)
        keep = 1.0 - min(0.5, prompts / MEMORY)
        # Weights are 1 / x, so that without others the estimate is the ratio of the sums.
        self._xx = keep * self._xx + x
        self._xi = keep * self._xi + others
        self._ii = keep * self._ii + others * others / x
        self._xt = keep * self._xt + tokens
        self._it = keep * self._it + others * tokens / x
        self.prompts += int(prompts)
        return self._apply(self._solved())

    def _solved(self) -> float:
        """Return the tokens per byte that fit best."""
        prior = self.mean * FIRST / (FIRST + self.prompts)
        xx, xt = self._xx + prior, self._xt + prior / BYTES_PER_TOKEN
        if not self._ii:
            return xt / xx
        ii = self._ii + self._ii / max(1.0, self.prompts / HELD)
        determinant = xx * ii - self._xi * self._xi
        found = (xt * ii - self._it * self._xi) / determinant
        return found if found > 0.0 else xt / xx

    def _apply(self, tokens_per_byte: float) -> bool:
        found = min(max(1.0 / max(tokens_per_byte, 1e-9), LEAST), MOST)
        if abs(log(found / self.force)) < STEP:
            return False
        self.force = found
        return True


class _Window:
    """What happened on one replica since the page with which a window began."""

    __slots__ = ("at", "counters", "dropped", "known", "owed", "prompts", "seen", "sizes")

    def __init__(self, counters: tuple[float, float | None], at: float) -> None:
        self.counters = counters
        """Tokens and prompts by the engine's counters, when it began."""
        self.seen = counters[0]
        """Tokens by the latest page."""
        self.at = at
        """When these last grew, monotonic seconds."""
        self.sizes: dict[tuple[str, str], list[float]] = {}
        """Bytes and number of our prompts, by pool and model."""
        self.known = 0
        """Tokens of our prompts whose tokens are known."""
        self.prompts = 0
        """Number of all our prompts."""
        self.dropped = False
        """Nothing is learned from it."""
        self.owed = 0.0
        """Prompts that the engine had counted beyond ours before, and that may yet be ours."""


class Scales:
    """The scales of all pools.

    Args:
        on_change: Called with a pool and the factor by which its tokens became more.
    """

    def __init__(self, on_change: Callable[[str, float], None]) -> None:
        self._on_change = on_change
        self._scales: dict[str, dict[str, Scale]] = {}
        self._blocks: dict[str, int] = {}
        """Bytes of a block of each pool's prompts."""
        self._usage: frozenset[str] = frozenset()
        """Pools whose answers tell tokens."""
        self._windows: dict[str, dict[str, _Window]] = {}
        """By endpoint id and the engine's name of the model."""
        self.counting: set[str] = set()
        """Ids of endpoints whose pages tell tokens; only their prompts, and those of pools with
        ``usage``, need be noted."""
        self.held: dict[str, Holdings] = {}
        """By endpoint id: the prompts in flight where pages tell no counter (rule 9)."""
        self.prompts: dict[int, _Sent] = {}
        """Prompts whose tokens are to be learned, by ticket; at most ``MAX_SENT``."""

    def __len__(self) -> int:
        return len(self.prompts)

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Keep exactly the scales of these pools and of their models."""
        self._scales = {
            name: {
                model: self._scales.get(name, {}).get(model) or Scale()
                for model in (WHOLE, *sorted(pool.models))
            }
            for name, pool in pools.items()
        }
        self._usage = frozenset(name for name, pool in pools.items() if pool.usage)
        self._blocks = {name: pool.block_chars for name, pool in pools.items()}
        known = {each.key.id for pool in pools.values() for each in pool.endpoints}
        for gone in [each for each in self._windows if each not in known]:
            del self._windows[gone]
        for gone in [each for each in self.held if each not in known]:
            del self.held[gone]
        self.counting &= known

    def of(self, pool: str, model: str | None = None) -> float:
        """Return the bytes per token of a pool's text, ``BYTES_PER_TOKEN`` until it is learned."""
        scales = self._scales.get(pool)
        if scales is None:
            return BYTES_PER_TOKEN
        scale = scales.get(model or WHOLE)
        return scales[WHOLE].force if scale is None or not scale.prompts else scale.force

    # --- What this picker sends -----------------------------------------------------------------

    def sent(
        self,
        ticket: int,
        pool: str,
        model: str | None,
        endpoint: str,
        size: int,
        tokens: int | None,
        blocks: Sequence[int] = (),
    ) -> None:
        """Note a prompt that was sent; it costs nothing where no engine tells tokens.

        Args:
            ticket: Its ticket.
            pool: Its pool.
            model: The model that it names.
            endpoint: The id of the replica.
            size: Bytes of its text.
            tokens: Its tokens, if they are known.
            blocks: The names of its blocks.
        """
        holdings = self.held.get(endpoint)
        if holdings is not None:
            holdings.sent(ticket, pool, size if tokens is None else 0, blocks)
        if endpoint not in self._windows and pool not in self._usage:
            return
        named = model if model in self._scales.get(pool, ()) else None
        self.prompts[ticket] = _Sent(
            pool, named or WHOLE, 0 if tokens is not None else size, tokens or 0, counted=False
        )
        if len(self.prompts) > MAX_SENT:
            del self.prompts[next(iter(self.prompts))]

    def began(self, ticket: int, endpoint: str) -> None:
        """Note that a prompt was computed: its answer began or ended on this replica."""
        sent = self.prompts.get(ticket)
        if sent is None or sent.counted:
            return
        if sent.pool in self._usage:
            self.prompts[ticket] = sent._replace(counted=True)
        else:
            del self.prompts[ticket]
        for window in self._windows.get(endpoint, {}).values():
            self._count(window, sent)

    def ended(self, ticket: int, endpoint: str) -> None:
        """Note that a request is not in flight on a replica any more."""
        holdings = self.held.get(endpoint)
        if holdings is not None:
            holdings.ended(ticket)

    def failed(self, ticket: int) -> None:
        """Note that a request ended without an answer."""
        self.prompts.pop(ticket, None)

    def _count(self, window: _Window, sent: _Sent) -> None:
        window.prompts += 1
        window.known += sent.tokens
        if sent.size:
            sizes = window.sizes.setdefault((sent.pool, sent.model), [0.0, 0.0])
            sizes[0] += sent.size
            sizes[1] += 1.0

    # --- What engines tell ----------------------------------------------------------------------

    def told(self, ticket: int, tokens: int) -> None:
        """Take the tokens of a prompt as its answer tells them."""
        sent = self.prompts.pop(ticket, None)
        if sent is None or not sent.size or tokens <= 0:
            return
        for scale in self._named(sent.pool, sent.model):
            scale.trusted, scale.by_cache = TRUSTED, False
        self._learn(sent.pool, sent.model, float(sent.size), 1.0, 0.0, float(tokens))

    def observe(self, endpoint: str, readings: Sequence[Reading]) -> None:
        """Take the latest readings of a replica."""
        counting = [each for each in readings if each.prompt_tokens is not None]
        if not counting:
            self._hold(endpoint, readings)
            return
        self.held.pop(endpoint, None)
        self.counting.add(endpoint)
        windows = self._windows.setdefault(endpoint, {})
        for name in windows.keys() - {each.model or "" for each in counting}:
            del windows[name]
        for each in counting:
            self._page(windows, each, alone=len(counting) == 1)

    def _hold(self, endpoint: str, readings: Sequence[Reading]) -> None:
        """Compare what a replica's cache holds with the prompts in flight (rule 9)."""
        told = [each for each in readings if each.kv_used is not None and each.kv_blocks]
        if len(told) != 1:
            return
        holdings = self.held.get(endpoint)
        if holdings is None:
            self.held[endpoint] = Holdings()
            self.counting.add(endpoint)
            return
        if any(each.queued for each in readings):
            return
        found = holdings.read(told[0], self._blocks)
        if found is None:
            return
        pool, size, prompts, tokens = found
        scale = self._scales.get(pool, {}).get(WHOLE)
        if scale is not None and (scale.by_cache or not scale.prompts):
            scale.by_cache = True
            self._learn(pool, WHOLE, size, prompts, 0.0, tokens)

    def restarted(self, endpoint: str) -> None:
        """Begin new windows of a replica whose process was restarted."""
        for window in self._windows.get(endpoint, {}).values():
            window.dropped = True

    def _page(self, windows: dict[str, _Window], reading: Reading, *, alone: bool) -> None:
        name, tokens = reading.model or "", reading.prompt_tokens or 0.0
        window = windows.get(name)
        if window is None:
            windows[name] = window = _Window((tokens, reading.prompts), reading.at)
            window.dropped = reading.prompts is None
            return
        grown = tokens - window.counters[0]
        stands = tokens == window.seen
        if not stands:
            window.seen, window.at = tokens, reading.at
        if grown >= 0.0 and stands:
            if not window.prompts or reading.at - window.at < STALE_S:
                return
            window.dropped = True
        elif grown > 0.0:
            learned = FIRST if window.dropped else self._learned(window)
            wanted = min(FULL, max(FIRST, learned))
            if window.prompts < wanted:
                return
        windows[name] = following = _Window((tokens, reading.prompts), reading.at)
        if grown > 0.0 and not window.dropped:
            following.owed = self._take(window, reading, grown, None if alone else name)

    def _learned(self, window: _Window) -> int:
        """Return from how many prompts the scales of a window's prompts were learned at least."""
        learned = [
            self._scales[pool][model].prompts
            for pool, model in window.sizes
            if model in self._scales.get(pool, ())
        ]
        return min(learned, default=FIRST)

    def _take(self, window: _Window, reading: Reading, grown: float, only: str | None) -> float:
        """Learn from a window that has ended; ``only`` = of prompts that name this model.

        Returns:
            What the engine has counted beyond ours, as far as it was not taken for others' prompts;
            below 0 if it lacks some of ours.
        """
        sizes = {key: each for key, each in window.sizes.items() if only is None or key[1] == only}
        size, prompts = sum(s for s, _ in sizes.values()), sum(n for _, n in sizes.values())
        ours = float(window.prompts) if only is None else prompts
        known = float(window.known) if only is None else 0.0
        others, owed, before = 0.0, 0.0, window.counters[1]
        if reading.prompts is not None and before is not None:
            counted = reading.prompts - before
            owed = window.owed + counted - ours
            if owed > max(SLACK, 0.1 * ours):
                others, owed = owed, 0.0
            elif counted > 0.0:
                grown *= ours / counted
        left = grown - known
        if left <= 0.0 or not prompts:
            return owed
        for (pool, model), (own, number) in sizes.items():
            trusting = next(self._named(pool, model), None)
            if trusting is not None and trusting.trusted:
                for scale in self._named(pool, model):
                    scale.trusted = max(0, scale.trusted - int(number))
                continue
            for scale in self._named(pool, model):
                scale.by_cache = False
            share = own / size
            self._learn(pool, model, own, number, others * share, left * share)
        return max(-SLACK * FULL, owed)

    def _named(self, pool: str, model: str) -> Iterator[Scale]:
        scales = self._scales.get(pool, {})
        for name in {model, WHOLE}:
            if name in scales:
                yield scales[name]

    def _learn(
        self, pool: str, model: str, size: float, prompts: float, others: float, tokens: float
    ) -> None:
        scales = self._scales.get(pool)
        if scales is None:
            return
        before = scales[WHOLE].force
        if model != WHOLE and model in scales:  # else the pool does not list it any more
            scales[model].learn(size, prompts, others, tokens)
        if scales[WHOLE].learn(size, prompts, others, tokens):
            self._on_change(pool, before / scales[WHOLE].force)

    # --- State ----------------------------------------------------------------------------------

    def each(self) -> Iterator[tuple[str, str, Scale]]:
        """Yield the scales that were learned, with pool and model (empty = the pool's)."""
        for pool, scales in self._scales.items():
            for model, scale in scales.items():
                if scale.prompts:
                    yield pool, model, scale

    def describe(self, pool: str) -> dict[str, object]:
        """Return the scales of a pool, ready for JSON."""
        scales = self._scales.get(pool, {WHOLE: Scale()})
        whole = scales[WHOLE]
        source = "answers" if whole.trusted else "cache" if whole.by_cache else "counters"
        return {
            "bytes_per_token": round(whole.force, 3),
            "from": source if whole.prompts else "default",
            "prompts": whole.prompts,
            "models": {
                model: round(scale.force, 3)
                for model, scale in scales.items()
                if model and scale.prompts
            },
        }
