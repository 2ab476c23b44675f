"""Recovery times: from a fault until all messages that were sent before it are answered."""

from math import inf

from tests.faults.harness.history import History, Key


def recoveries(history: History, *, only: str = "", slow_s: float = inf) -> list[float]:
    """Seconds, for each fault that did harm (and has `only` in its words) while messages were unanswered.

    `slow_s`: messages sent after the fault count, too, if they took longer than this. A recovery ends when the last
    message that was sent before the fault has its first result at the sender. So it includes the wait for requests in
    doubt, and further faults in between. Messages without a result, and those with a time of their own, do not count.
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
