"""The metrics of several processes as one exposition: counters are summed, gauges of a process get its index."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from relay.telemetry.metrics import OF_ALL

PROCESS: Final = "process"
"""Label with the index of a process, for values without a meaningful sum: its memory, its start, its collector's
runs."""

PROCESSES_SILENT: Final = "relay_processes_silent"
_OF_ONE_PROCESS: Final = ("process_", "python_")


def merge(texts: Mapping[int, str], silent: int, left: Sequence[str] = ()) -> bytes:
    """One exposition from those of several processes, by index. `silent`: how many have not returned theirs. `left`:
    expositions of which only counters and histograms count.

    Counters, and buckets, counts and sums of histograms, are added up where name and labels are equal. So are gauges: a
    lane is in the window of one process only. Gauges of shared things are not. Raises ValueError for an invalid
    exposition.
    """
    families = _Families()
    for index, text in sorted(texts.items()):
        for metric in text_string_to_metric_families(text):
            families.add(index, metric)
    families.add_counts(left)
    families.set(PROCESSES_SILENT, silent)
    return families.exposition()


def counts_of(*texts: str) -> bytes:
    """The counters and histograms of these expositions, added up: what still counts when the processes have ended."""
    families = _Families()
    families.add_counts(texts)
    return families.exposition()


class _Families(Collector):
    """Families in the order of their first appearance, as are the samples in each."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._samples: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}

    def add(self, index: int, metric: Metric) -> None:
        self._metrics.setdefault(metric.name, metric)
        samples = self._samples.setdefault(metric.name, {})
        more = {PROCESS: str(index)} if metric.name.startswith(_OF_ONE_PROCESS) else {}
        of_all = metric.name in OF_ALL
        for sample in metric.samples:
            key = sample.name, tuple(sorted((sample.labels | more).items()))
            before = samples.get(key, 0)
            samples[key] = max(before, sample.value, key=abs) if of_all else before + sample.value

    def add_counts(self, texts: Iterable[str]) -> None:
        """Only counters and histograms."""
        for text in texts:
            for metric in text_string_to_metric_families(text):
                if metric.type in ("counter", "histogram") and not metric.name.startswith(_OF_ONE_PROCESS):
                    self.add(0, metric)

    def set(self, name: str, value: float) -> None:
        """A gauge without labels, which only the process that merges can set."""
        self._samples[name] = {(name, ()): value}

    def exposition(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        for name, first in self._metrics.items():
            metric = Metric(name, first.documentation, first.type)
            metric.samples = [
                Sample(each, dict(labels), value) for (each, labels), value in self._samples[name].items()
            ]
            yield metric
