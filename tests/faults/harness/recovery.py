"""How long the relay took to come back: from a fault until all that was sent before it was answered."""

from math import inf

from tests.faults.harness.history import History, Key


def recoveries(history: History, *, only: str = "", slow_s: float = inf) -> list[float]:
    """Seconds, for each fault that did harm (and has `only` in its words) while messages were unanswered.

    `slow_s`: messages sent after the fault count, too, where they took longer than this: they waited for its end.

    It ends when the last message that was sent before the fault has its first result at the sender: so it holds the
    settling of requests in doubt, and whatever faults came before that end. A message that never got one does not
    count here; it is lost or dead. One with a time of its own does not count either.
    """
    answered: dict[Key, float] = {}
    for result in history.returned:
        answered.setdefault(Key(result.source, result.message_id, result.receiver), result.at)
    spans = []
    for sent in history.sent:
        end = answered.get(Key(sent.source, sent.message_id, sent.receiver))
        if end is not None and sent.timing is None:
            spans.append((sent.at, end))
    found = []
    for fault in history.faults:
        if not fault.heals and only in fault.what:
            left = [
                end - fault.at for start, end in spans if fault.at < end and (start < fault.at or end - start > slow_s)
            ]
            if left:
                found.append(max(left))
    return found
