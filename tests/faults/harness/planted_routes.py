"""Planted bugs about where messages and results go; see `planted`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import workers.from_sender
from relay.domain.directory import Directory
from relay.domain.receiver import Source
from relay.domain.scope import Scope
from relay.engine.decision import Dead, Done, Later
from workers.from_sender import FromSender, Incoming
from workers.to_sender import ToSender


@contextmanager
def wide_fan_out_cut() -> Iterator[None]:
    """A message is routed to its first two receivers only."""

    def names(self: FromSender, message: Any) -> Any:
        return rightly(self, message)[:2]

    rightly = FromSender._names
    with patch.object(FromSender, "_names", names):
        yield


@contextmanager
def senders_not_asked() -> Iterator[None]:
    """Any source may name any receiver."""
    with patch.object(workers.from_sender, "may_name", lambda receiver, source_id: True):
        yield


@contextmanager
def unusable_is_unknown() -> Iterator[None]:
    """A receiver whose settings this process cannot use counts as unknown: its messages become dead letters."""

    def routed(self: FromSender, work: Incoming, names: Sequence[str]) -> Done | Later:
        unusable = [name for name in names if (one := self.directory.receiver(name)) and one.unusable is not None]
        known = rightly(self, work, [name for name in names if name not in unusable])
        if not isinstance(known, Done):
            return known
        ends = dict.fromkeys(unusable, Dead("unknown_receiver"))
        work.failed |= ends
        return Done((*known.records, *(self._letter(work, *end) for end in ends.items())))

    rightly = FromSender._routed
    with patch.object(FromSender, "_routed", routed):
        yield


class _OneCallback:
    """Knows only the callback of the source that was looked up first."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._first: Source | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.directory, name)

    def source(self, source_id: str) -> Source:
        found = self.directory.source(source_id)
        self._first = self._first or found
        return replace(found, callback=self._first.callback)


@contextmanager
def callbacks_mixed_up() -> Iterator[None]:
    """All results are sent to the callback of the first source that had one."""

    def init(self: ToSender, directory: Directory, *rest: Any) -> None:
        rightly(self, _OneCallback(directory), *rest)

    rightly = ToSender.__init__
    with patch.object(ToSender, "__init__", init):
        yield


@contextmanager
def keys_without_limits() -> Iterator[None]:
    """A key's right on one source applies to all sources."""

    def covers(self: Scope, kind: str, name: str) -> bool:
        return self.kind in (kind, "admin")

    with patch.object(Scope, "covers", covers):
        yield


PLANTED_IN_ROUTES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (wide_fan_out_cut, senders_not_asked, unusable_is_unknown, callbacks_mixed_up, keys_without_limits)
}
