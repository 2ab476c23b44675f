"""Planted bugs of options, erasures and jobs; see `tests/faults/harness/planted.py`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import relay.domain.filters
import workers.records
from relay.domain.filters import FilterInput
from relay.replay.executor import ReplayExecutor
from relay.replay.plan import ReplayPlan
from relay.replay.replay_service import ReplayService
from workers.dependencies import Dependencies
from workers.payload_encryption import PayloadEncryption


@contextmanager
def each_its_own_value() -> Iterator[None]:
    """No two messages have the same value of a field."""

    def order_digest(by: str, event: FilterInput) -> str | None:
        return event.message.message_id.encode().hex()[:24].rjust(24, "0") if rightly(by, event) else None

    rightly = relay.domain.filters.order_digest
    with patch.object(workers.records, "order_digest", order_digest):
        yield


@contextmanager
def not_encrypted() -> Iterator[None]:
    def post(_: PayloadEncryption, work: Any, made: Callable[[Any], Any]) -> Any:
        return made(None)

    with patch.object(PayloadEncryption, "post", post):
        yield


@contextmanager
def erased_later() -> Iterator[None]:
    """What is on its way is not erased."""
    with patch.object(Dependencies, "erased", lambda *_: None):
        yield


@contextmanager
def all_replayed() -> Iterator[None]:
    """A job for what failed goes through what was delivered, too."""

    async def spans(self: ReplayService, selection: Any, *, only_failed: bool) -> Any:
        return await rightly(self, selection, only_failed=False)

    rightly = ReplayService._spans
    with patch.object(ReplayService, "_spans", spans):
        yield


@contextmanager
def last_one_skipped() -> Iterator[None]:
    """A job counts the last of its letters as replayed, and does nothing for it."""

    async def carry_out(self: ReplayExecutor, plans: Sequence[ReplayPlan]) -> list[ReplayPlan]:
        return [*await rightly(self, plans[:-1]), *plans[-1:]]

    rightly = ReplayExecutor.carry_out
    with patch.object(ReplayExecutor, "carry_out", carry_out):
        yield


PLANTED_IN_OPTIONS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug for bug in (each_its_own_value, not_encrypted, erased_later, all_replayed, last_one_skipped)
}
