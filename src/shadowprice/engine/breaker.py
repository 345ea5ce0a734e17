"""A circuit breaker: how many attempts may be in flight, by how the earlier ones ended. Decides; never waits.

    closed      a window of attempts, at first the concurrency. A failure that cost nothing (429, 503) halves it;
                answers widen it again, by one per wave.
    open        after three failures in a row: an outage. One attempt at a time, a probe, after pauses that double,
                until one is answered or the outage has lasted longer than the patience of the run. Then the window
                doubles with every wave until it is as wide as before.

Failures in a row count whatever their causes: behind one address some servers refuse connections while others are busy,
and messages have numbers in them. Three failures of a single request are no outage as long as the server answers
others, unless it cannot be reached. Requests that failed in a row (`failing`) may themselves be at fault, so others are
sent as probes, and once all have failed, each of them in turn. If probes cost an unknown amount, each is charged in
full; the run stops after eight of them.
"""

from __future__ import annotations

from shadowprice.errors import BackendError, Denied, Unavailable

_FAILURES = 3  # in a row
_DENIALS = 16  # in a row, of a server that has answered others
_LOST_PROBES = 8  # probes of unknown cost
_LONGEST_PAUSE = 30.0  # seconds, unless the server asks for more


class Breaker:
    """The state of one server. Times are seconds of any monotonic clock.

    patience  how long an outage may last
    pause     before the first probe, and before the first retry
    """

    def __init__(self, concurrency: int, patience: float, pause: float) -> None:
        self.reason = ""  # why the execution has to stop; empty if it need not
        self.turn = 0  # attempts that were sent in an earlier turn say nothing about the server now
        self.open = False
        self._concurrency, self._patience, self._first_pause = concurrency, patience, pause
        self._window, self._threshold = float(concurrency), float(concurrency)
        self._answered = False
        self.failing: set[int] = set()  # requests that failed since the last answer, or in this turn of all of them
        self._failures = 0  # in a row
        self._cause = ""  # of the latest
        self._denials = 0
        self._lost_probes = 0
        self._since, self._before = 0.0, self._window  # the first failure in a row, and the window until then
        self._pause, self._until = pause, 0.0

    @property
    def cause(self) -> str:
        """The cause of the latest failure, in a few words."""
        return self._cause

    def room(self, under_way: int, now: float) -> int:
        """How many attempts may be sent now."""
        if self.reason:
            return 0
        if self.open:
            return 1 if not under_way and now >= self._until else 0
        return max(0, int(self._window) - under_way)

    def wait(self, now: float) -> float:
        """Seconds until the next probe; 0 if the server is not known to be down."""
        return max(0.0, self._until - now) if self.open else 0.0

    def describe(self, now: float) -> str:
        """What the run is waiting for; empty if the server is not known to be down."""
        if not self.open:
            return ""
        seconds = self.wait(now)
        return f"server unavailable ({self._cause}), " + (
            f"retrying in {seconds:.0f} s" if seconds >= 0.5 else "retrying"
        )

    def pause(self, tried: int, error: BackendError) -> float:
        """Seconds before a retry: what the server asked for, or twice as long each time."""
        named = error.delay if isinstance(error, Unavailable) else None
        usual = min(_LONGEST_PAUSE, self._first_pause * 2.0 ** (tried - 1))
        return min(usual if named is None else named, self._patience)

    def answered(self, turn: int) -> None:
        """An attempt that was sent in `turn` was answered."""
        self._answered = True
        recent = turn >= self.turn
        if self.open and not recent:
            return
        self.open = False
        self.failing.clear()
        self._failures = self._denials = self._lost_probes = 0
        self._pause = self._first_pause
        if recent:
            self._window += 1.0 if self._window < self._threshold else 1.0 / self._window
            self._window = min(self._window, float(self._concurrency))

    def failed(self, error: BackendError, request: int, turn: int, now: float) -> None:
        """An attempt at a request, sent in `turn`, failed."""
        if isinstance(error, Unavailable):
            self._unavailable(error, request, turn, now)
        elif isinstance(error, Denied):
            self._denials += 1
            if self._denials >= (_DENIALS if self._answered else _FAILURES):
                self.reason = f"the server refuses every request: {error}"

    def _unavailable(self, error: Unavailable, request: int, turn: int, now: float) -> None:
        if not self._failures:
            self._since, self._before = now, self._window
        self._failures += 1
        self._cause = error.cause
        recent = turn >= self.turn  # otherwise it was sent before the server was known to be down or busy
        if self.open and recent and request in self.failing:  # all have failed: each is tried once more
            self.failing.clear()
        self.failing.add(request)
        if self.open:
            if recent:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._lost_probes += error.tokens is None
                self._wait(error, now)
        elif self._is_outage(error):
            self.open = True
            self._window, self._threshold = 1.0, self._before
            self._wait(error, now)
        elif error.tokens == 0 and recent:
            self._threshold = self._window = max(1.0, self._window / 2)
            self.turn += 1

    def _is_outage(self, error: Unavailable) -> bool:
        one_at_fault = len(self.failing) == 1 and self._answered and error.sent
        return self._failures >= _FAILURES and not one_at_fault

    def _wait(self, error: Unavailable, now: float) -> None:
        """Schedules the next probe; the last one is due when the patience ends."""
        self.turn += 1
        end = self._since + self._patience
        self._until = min(now + max(self._pause, error.delay or 0.0), end)
        if self._lost_probes >= _LOST_PROBES:
            self.reason = f"the server fails at an unknown cost: {error}"
        elif now >= end:
            self.reason = f"the server has been unavailable for {_duration(now - self._since)}: {error}"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
