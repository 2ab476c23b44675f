"""A receiver or a callback outside the relay, and how it responds."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

Mode = Literal["answer", "slow", "later", "builds", "hang", "fail", "lossy", "flaky"]


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How POSTs are answered. In every mode those above `rate` a second (null: no limit) get 429.

    `answer`, `slow`: 200 with the answer, after `seconds`. `later`: 202, and the status endpoint has the answer
    `seconds` after that. `builds`: 202 with the name of its item, which has a build after half of `seconds`; the build
    has the answer after `seconds`. `hang`: no response, and nothing is processed. `fail`: 500, not processed. `lossy`:
    with the probability `chance` processed, and the connection closed without an answer; else as `answer`. `flaky`:
    likewise, with one of a lost response, a connection closed before processing, a 500 and a 503. `status`: whether
    there is a status endpoint; it also answers while POSTs hang or fail.
    """

    mode: Mode = "answer"
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    status: bool = True
    chance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5


class Reaction(NamedTuple):
    """The treatment of a POST. `status` None: no response; then the connection hangs, or is closed if `cut`."""

    status: int | None
    processed: bool
    after_s: float = 0.0
    cut: bool = False
    retry_after_s: int | None = None


_LOST: Final = Reaction(None, processed=True, cut=True)
_FLAWS: Final = (
    _LOST,
    Reaction(None, processed=False, cut=True),
    Reaction(500, processed=False),
    Reaction(503, processed=False, retry_after_s=1),
)


class Pace:
    """Limits requests to `rate` in any second; to one in 1/rate seconds for a rate below one."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque()

    def wait_s(self, rate: float, now: float) -> float:
        """0 if a request is admitted now, which then counts; otherwise the seconds until one is. `now`: monotonic
        seconds."""
        window_s = max(1.0, 1 / rate)
        starts = self._starts
        while starts and starts[0] <= now - window_s:
            starts.popleft()
        if len(starts) >= max(1, int(rate * window_s)):
            return starts[0] + window_s - now
        starts.append(now)
        return 0.0


def reaction(behaviour: Behaviour, chance: Callable[[], float]) -> Reaction:
    """The treatment of a POST, without the rate. `chance` returns uniform samples of [0, 1)."""
    healthy = Reaction(200, processed=True, after_s=behaviour.seconds)
    match behaviour.mode:
        case "answer" | "slow":
            return healthy
        case "later" | "builds":
            return Reaction(202, processed=True)
        case "hang":
            return Reaction(None, processed=False)
        case "fail":
            return Reaction(500, processed=False)
        case "lossy":
            return _LOST if chance() < behaviour.chance else healthy
        case "flaky":
            return _FLAWS[int(chance() * len(_FLAWS))] if chance() < behaviour.chance else healthy


class Party:
    """A receiver, or the callback."""

    def __init__(self, behaviour: Behaviour, chance: Callable[[], float]) -> None:
        self.behaviour = behaviour
        self._chance = chance
        self._pace = Pace()
        self._answers: dict[str, tuple[float, bytes]] = {}
        self._under_way = self._peak = 0

    def begun(self) -> None:
        self._under_way += 1

    def ended(self) -> None:
        self._under_way -= 1

    def new_peak(self) -> int | None:
        """The number of POSTs in flight, if that is a new maximum."""
        if self._under_way <= self._peak:
            return None
        self._peak = self._under_way
        return self._peak

    def meet(self, *, counts: bool) -> Reaction:
        """The treatment of the next POST. `counts`: towards the rate."""
        if counts and self.behaviour.rate is not None:
            wait_s = self._pace.wait_s(self.behaviour.rate, time.monotonic())
            if wait_s > 0:
                return Reaction(429, processed=False, retry_after_s=math.ceil(wait_s))
        return reaction(self.behaviour, self._chance)

    def work(self, names: tuple[str, ...], answer: bytes) -> None:
        """Process a message, which the status endpoint then knows by `names`. A repeat does not change its answer."""
        takes_s = self.behaviour.seconds if self.behaviour.mode in ("later", "builds") else 0.0
        for name in filter(None, names):
            self._answers.setdefault(name, (time.monotonic() + takes_s, answer))

    def status_of(self, name: str) -> tuple[int, bytes]:
        """The response of its status endpoint."""
        if not self.behaviour.status:
            return 405, b""
        ready_at, answer = self._answers.get(name, (math.inf, b""))
        if ready_at <= time.monotonic():
            return 200, answer
        return (404, b"") if ready_at == math.inf else (202, b"")

    def item_of(self, name: str) -> tuple[int, bytes]:
        """The response of the first status step, a message's item: 404 for one that never arrived."""
        if name not in self._answers:
            return 404, b""
        has_build = self._answers[name][0] - self.behaviour.seconds / 2 <= time.monotonic()
        return 200, msgspec.json.encode({"build": name} if has_build else {})
