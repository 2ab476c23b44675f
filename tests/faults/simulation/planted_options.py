"""Planted bugs of options, erasures and jobs; see `tests/faults/harness/planted.py`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from relay.replay.executor import ReplayExecutor
from relay.replay.plan import ReplayPlan
from workers.dependencies import Dependencies
from workers.payload_encryption import PayloadEncryption


@contextmanager
def not_encrypted() -> Iterator[None]:
    def post(_: PayloadEncryption, work: Any, made: Callable[[Any], Any]) -> Any:
        return made(None)

    with patch.object(PayloadEncryption, "post", post):
        yield


@contextmanager
def erased_later() -> Iterator[None]:
    """Messages in flight are not erased."""
    with patch.object(Dependencies, "erased", lambda *_: None):
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
    bug.__name__: bug for bug in (not_encrypted, erased_later, last_one_skipped)
}
