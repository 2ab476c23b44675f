"""Checks the numbers of receivers with `ordering: receiver`. Pure."""

from collections.abc import Iterator, Mapping

from tests.faults.harness.history import Arrival, Counterexample, History, Key, Promise


def wrongly_numbered(history: History, promises: Mapping[str, Promise]) -> Iterator[Counterexample]:
    """Numbers of two messages, and numbers below others that neither arrived nor were named as a gap."""
    for receiver, promise in promises.items():
        if promise.numbered:
            yield from _of_receiver(receiver, [each for each in history.arrivals if each.receiver == receiver])


def _of_receiver(receiver: str, arrivals: list[Arrival]) -> Iterator[Counterexample]:
    known: dict[int, Key] = {}
    for arrival in arrivals:
        if arrival.sequence is not None:
            first = known.setdefault(arrival.sequence, arrival.key)
            if first != arrival.key:
                says = f"{arrival.key}: its number {arrival.sequence} is that of {first}"
                yield Counterexample("misnumbered", (first, arrival.key), says)
    gaps = sorted({gap for arrival in arrivals for gap in arrival.gaps})
    last = min(known, default=0) - 1
    for number in sorted(known):
        for begin, end in gaps:
            if begin <= last + 1 <= end:
                last = min(end, number - 1)
        if last + 1 < number:
            says = f"{receiver}: the numbers from {last + 1} to {number - 1} did not arrive, and no gap names them"
            yield Counterexample("misnumbered", (known[number],), says)
        last = number
