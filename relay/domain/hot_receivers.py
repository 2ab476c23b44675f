"""Hot receivers: those that take more than their share of the shared lane. Pure.

A receiver is hot once it had HOT of the POSTs of a whole window, and calm once it had less than CALM of them. The
distance between the two keeps it from turning often. Others have to be sent something, too: alone it harms no one.

One that stays hot gets a lane of its own, and returns once it would be calm in the shared lane for much longer than it
took to leave. `relay/watch/hot_moves.py` records that, and `relay/domain/route.py` has the move itself.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

WINDOW: Final = 12
"""Counts that make a window: a minute."""
HOT: Final = 0.5
CALM: Final = 0.25
LEAST: Final = 120
"""POSTs to it in a window: with fewer, no share is a burden."""
OTHERS: Final = 0.02
"""Share of the POSTs that go to other receivers at least."""
MOST_HOT: Final = 20
"""Receivers that are hot at a time, at most; with HOT and CALM there are fewer."""

HotState = Literal["hot", "calm"]


class HotTurn(NamedTuple):
    """A receiver that became hot or calm. `share`: of the POSTs in the window."""

    receiver: str
    state: HotState
    share: float
    posts: int


class PostWindow:
    """The POSTs to receivers in the last WINDOW counts."""

    def __init__(self) -> None:
        self._counts: deque[Mapping[str, int]] = deque(maxlen=WINDOW)
        self.sums: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        return len(self._counts) == WINDOW

    def add(self, sent: Mapping[str, int]) -> None:
        if self.is_full:
            self.sums.subtract(self._counts[0])
            self.sums += Counter()  # without zeros
        self._counts.append(sent)
        self.sums.update(sent)


class HotReceivers:
    """The shares of the last window."""

    def __init__(self) -> None:
        self._window = PostWindow()
        self.hot: dict[str, float] = {}
        """The hot receivers, with their shares."""

    @property
    def posts(self) -> int:
        """To all receivers in the window."""
        return self._window.sums.total()

    def add(self, sent: Mapping[str, int]) -> list[HotTurn]:
        """The next counts of POSTs to receivers of the shared lane. Returns which receivers became hot or calm."""
        self._window.add(sent)
        total = self.posts
        return [*self._calmed(total), *self._heated(total)]

    def _calmed(self, total: int) -> list[HotTurn]:
        turns = []
        for name in list(self.hot):
            posts = self._window.sums[name]
            self.hot[name] = share = posts / total if total else 0.0
            if is_calm(posts, total):
                del self.hot[name]
                turns.append(HotTurn(name, "calm", share, posts))
        return turns

    def _heated(self, total: int) -> list[HotTurn]:
        if not self._window.is_full:
            return []
        turns = []
        for name, posts in self._window.sums.most_common(MOST_HOT):
            share = posts / total
            if name in self.hot or posts < LEAST or not HOT <= share <= 1 - OTHERS or len(self.hot) >= MOST_HOT:
                continue
            self.hot[name] = share
            turns.append(HotTurn(name, "hot", share, posts))
        return turns


def is_calm(posts: int, total: int) -> bool:
    """Whether a receiver with `posts` of the `total` of a window burdens no one."""
    return posts < LEAST // 2 or posts < CALM * total


# --- moves --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HotLane:
    """The record of a receiver that has a lane of its own while it is hot. `since`: Unix seconds. `share`: of the POSTs
    of the shared lane, when it left that."""

    since: float
    share: float


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """Seconds, each without interruption, for which a receiver is hot before it leaves the shared lane, has a lane of
    its own at least, and would be calm in the shared lane before it returns. `most`: receivers that have left."""

    hot_s: float = 60.0
    stay_s: float = 1_800.0
    calm_s: float = 600.0
    most: int = 10


@dataclass(frozen=True, slots=True)
class SharesSeen:
    """The receivers that may have to change their lane. `hot`: share of each receiver of the
    shared lane that is hot and could leave it. `moved`: the records of those that have left. `calm`: those of them that
    are known to be a burden no more."""

    hot: Mapping[str, float]
    moved: Mapping[str, HotLane]
    calm: frozenset[str]


class HotMove(NamedTuple):
    receiver: str
    to: Literal["dedicated", "shared"]


class HotMoves:
    """Decides which hot receivers leave the shared lane, and which return. In one process of all."""

    def __init__(self, limits: MoveLimits | None = None) -> None:
        self._limits = limits or MoveLimits()
        self._hot_since: dict[str, float] = {}
        self._calm_since: dict[str, float] = {}

    def decide(self, now: float, seen: SharesSeen) -> list[HotMove]:
        """`now`: Unix seconds. A receiver that is not in the lists, because nothing is known of it, does not move."""
        limits = self._limits
        self._hot_since = _since(self._hot_since, seen.hot.keys() - seen.moved.keys(), now)
        self._calm_since = _since(self._calm_since, seen.calm & seen.moved.keys(), now)
        back = [
            name
            for name, since in sorted(self._calm_since.items())
            if now - since >= limits.calm_s and now - seen.moved[name].since >= limits.stay_s
        ]
        ripe = [name for name, since in self._hot_since.items() if now - since >= limits.hot_s]
        free = max(0, limits.most - len(seen.moved))
        out = sorted(ripe, key=lambda name: (-seen.hot[name], name))[:free]
        return [*(HotMove(name, "shared") for name in back), *(HotMove(name, "dedicated") for name in out)]


def _since(known: Mapping[str, float], names: Iterable[str], now: float) -> dict[str, float]:
    return {name: known.get(name, now) for name in names}
