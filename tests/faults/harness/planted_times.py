"""Planted bugs about messages with times and keys of their own; see `planted`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any
from unittest.mock import patch

from msgspec import structs

import workers.tables
from relay.engine.decision import Dead, Later
from relay.state.attempts import Settlement
from workers.delivery import Delivery


@contextmanager
def sent_before_due() -> Iterator[None]:
    """A message is sent at once, whatever its `deliver_at`."""

    def expired_or_early(self: Delivery, now: float) -> Dead | Later | None:
        return rightly(self, max(now, 0.0 if self.timing is None else self.timing.deliver_at))

    rightly = Delivery.expired_or_early
    with patch.object(Delivery, "expired_or_early", expired_or_early):
        yield


@contextmanager
def deadline_forgotten() -> Iterator[None]:
    """A message is tried for as long as its receiver's settings say, whatever its deadline."""

    def deadline_in_s(self: Delivery, now: float) -> float:
        return inf

    retry = property(lambda self: self.receiver.post.retry)
    with patch.object(Delivery, "retry", retry), patch.object(Delivery, "deadline_in_s", deadline_in_s):
        yield


@contextmanager
def replaced_though_sent() -> Iterator[None]:
    """A newer message of a key replaces older ones whose attempt has begun, too."""

    def end(*what: Any) -> Settlement:
        return structs.replace(rightly(*what), unsent_ms=None)

    rightly = workers.tables._end
    with patch.object(workers.tables, "_end", end):
        yield


@contextmanager
def older_ones_kept() -> Iterator[None]:
    """No message is replaced."""

    async def supersede(*_: Any) -> None:
        return

    with patch.object(workers.tables, "supersede", supersede):
        yield


PLANTED_IN_TIMES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug for bug in (sent_before_due, deadline_forgotten, replaced_though_sent, older_ones_kept)
}
