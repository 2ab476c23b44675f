"""Counters, levels and histograms for one thread: a change costs an addition, and no lock.

The client library's own metrics take a lock and several calls for every change, a tenth of the budget of a message. Its
text format is used unchanged: a Family is a collector of its registry.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Generic, Literal, TypeVar

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

MAX_RECEIVERS: Final = 200
"""With all of a receiver's histograms that is some 20,000 samples, which take a tenth of a second to write."""
OTHER: Final = "_other"
"""Label of the receivers beyond the limit; no receiver can have this name."""

_text: Callable[[float], str] = floatToGoString
Sample = tuple[str, dict[str, str], float]
"""Suffix of the name, labels beyond those of the series, value."""


class CounterSeries:
    """A series that only grows."""

    kind: Final[Literal["counter"]] = "counter"
    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def inc(self, by: int = 1) -> None:
        self._value += by

    def samples(self) -> Iterator[Sample]:
        yield "_total", {}, self._value


class Level:
    """A current value."""

    kind: Final[Literal["gauge"]] = "gauge"
    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0.0

    def set(self, value: float) -> None:
        self._value = value

    def add(self, by: float) -> None:
        self._value += by

    def raise_to(self, value: float) -> None:
        self._value = max(self._value, value)

    def samples(self) -> Iterator[Sample]:
        yield "", {}, self._value


class Spread:
    """Distribution of observed values over buckets. `bounds`: their upper ends, ascending."""

    kind: Final[Literal["histogram"]] = "histogram"
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[Sample]:
        for bound, count in zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True):
            yield "_bucket", {"le": _text(bound)}, count
        yield "_count", {}, sum(self._counts)
        yield "_sum", {}, self._sum


M = TypeVar("M", CounterSeries, Level, Spread)


class ReceiverLabels:
    """The receivers with series of their own: the first ones and, once there are MAX_RECEIVERS of them, those that
    are sent most."""

    MEMORY: Final = 0.98
    """Share of a volume that remains at the next `weigh`: half of it after 35."""
    TIMES: Final = 2.0
    """A receiver with this many times the traffic takes the place of another, so that places seldom change."""
    MOST: Final = 20_000
    """Volumes remembered, at most."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._volume: dict[str, float] = {}

    def label(self, name: str) -> str:
        if name not in self._own and len(self._own) >= MAX_RECEIVERS:
            return OTHER
        self._own.add(name)
        return name

    def weigh(self, sent: Mapping[str, int]) -> frozenset[str]:
        """`sent`: POSTs to each since the last call. Returns the receivers that lost or won a place: their series
        start again."""
        volume = {name: kept for name, had in self._volume.items() if (kept := had * self.MEMORY) >= 1.0}
        for name, count in sent.items():
            volume[name] = volume.get(name, 0.0) + count
        ranked = sorted(volume, key=lambda name: (-volume[name], name))[: self.MOST]
        self._volume = {name: volume[name] for name in ranked}
        if len(self._own) < MAX_RECEIVERS:
            return frozenset()
        without = [name for name in ranked if name not in self._own][:MAX_RECEIVERS]
        least = sorted(self._own, key=lambda name: (volume.get(name, 0.0), name))
        changed: set[str] = set()
        for winner, loser in zip(without, least, strict=False):
            if volume[winner] <= self.TIMES * volume.get(loser, 0.0):
                break
            self._own.remove(loser)
            self._own.add(winner)
            changed |= {winner, loser}
        return frozenset(changed)


class Family(Collector, Generic[M]):
    """All series of one metric."""

    def __init__(
        self, name: str, meaning: str, label_names: tuple[str, ...], new: Callable[[], M], receivers: ReceiverLabels
    ) -> None:
        self.name = name
        self.meaning = meaning
        self.label_names = label_names
        self._new: Callable[[], M] = new
        self._receiver_at: int | None = label_names.index("receiver") if "receiver" in label_names else None
        self._receivers = receivers
        self._known: dict[tuple[str, ...], M] = {}
        self._series: dict[tuple[str, ...], M] = {}  # under the displayed labels

    def labels(self, *values: str) -> M:
        """The series of these label values, in the order in which `Metrics` names them."""
        known = self._known.get(values)
        return known if known is not None else self._find(values)

    def forget_receivers(self, names: Collection[str]) -> None:
        """Forget every series of these receivers."""
        if self._receiver_at is not None:
            for values in [key for key in {**self._known, **self._series} if key[self._receiver_at] in names]:
                self.forget(*values)

    def forget(self, *values: str) -> None:
        """Forget the series of these label values."""
        self._known.pop(values, None)
        self._series.pop(values, None)

    def clear(self) -> None:
        """Forget every series: current values are set again."""
        self._known.clear()
        self._series.clear()

    def every(self) -> Iterator[M]:
        """Every series."""
        yield from self._series.values()

    @property
    def kind(self) -> str:
        return self._new().kind

    def collect(self) -> Iterator[Metric]:
        sample_of = self._new()
        metric = Metric(self.name.removesuffix("_total"), self.meaning, sample_of.kind)
        for values, series in self._series.items():
            labels = dict(zip(self.label_names, values, strict=True))
            for suffix, more, value in series.samples():
                metric.add_sample(metric.name + suffix, labels | more, value)
        yield metric

    def _find(self, values: tuple[str, ...]) -> M:
        shown = values
        if self._receiver_at is not None:
            named = list(values)
            named[self._receiver_at] = self._receivers.label(named[self._receiver_at])
            shown = tuple(named)
        series = self._series.get(shown)
        if series is None:
            series = self._series[shown] = self._new()
        if shown == values or len(self._known) < 2 * MAX_RECEIVERS:
            self._known[values] = series
        return series
