"""Hot receivers: those that take more than their share of the shared lane. Pure.

A receiver is hot once it had HOT of the POSTs of a whole window, and calm once it had less than CALM of them. The
distance between the two keeps it from turning often. Others have to be sent something, too: alone it harms no one.
"""

from collections import Counter, deque
from collections.abc import Mapping
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
    """`share`: of the POSTs in the window."""

    receiver: str
    state: HotState
    share: float
    posts: int


class HotReceivers:
    """The shares of the last window."""

    def __init__(self) -> None:
        self._counts: deque[Mapping[str, int]] = deque(maxlen=WINDOW)
        self._sums: Counter[str] = Counter()
        self.hot: dict[str, float] = {}
        """The hot receivers, with their shares."""

    def add(self, sent: Mapping[str, int]) -> list[HotTurn]:
        """The next counts of POSTs to receivers of the shared lane. Returns which receivers became hot or calm."""
        if len(self._counts) == WINDOW:
            self._sums.subtract(self._counts[0])
            self._sums += Counter()  # without zeros
        self._counts.append(sent)
        self._sums.update(sent)
        total = self._sums.total()
        return [*self._calmed(total), *self._heated(total)]

    def _calmed(self, total: int) -> list[HotTurn]:
        turns = []
        for name in list(self.hot):
            posts = self._sums[name]
            self.hot[name] = share = posts / total if total else 0.0
            if share < CALM or posts < LEAST // 2:
                del self.hot[name]
                turns.append(HotTurn(name, "calm", share, posts))
        return turns

    def _heated(self, total: int) -> list[HotTurn]:
        if len(self._counts) < WINDOW:
            return []
        turns = []
        for name, posts in self._sums.most_common(MOST_HOT):
            share = posts / total
            if name in self.hot or posts < LEAST or not HOT <= share <= 1 - OTHERS or len(self.hot) >= MOST_HOT:
                continue
            self.hot[name] = share
            turns.append(HotTurn(name, "hot", share, posts))
        return turns
