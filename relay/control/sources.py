"""The sources in effect, by id, and the default for sources without an entry of their own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from relay.config.receivers_file import ANY_SOURCE
from relay.domain.identity import OWN_SOURCE
from relay.domain.receiver import Source

OTHERS_KEPT: Final = 16_384


OWN: Final = Source(OWN_SOURCE, answers="none", failures=False)
"""The source of the relay's own events, whose results are not returned; otherwise the callback of `*` would get
them."""


class EffectiveSources:
    """Sources in effect, resolved."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._others: dict[str, Source] = {}  # made from that of `*`

    def source(self, source_id: str) -> Source:
        """The source: its own entry, or that of `*` with this id, or a source without callback."""
        if source_id == OWN_SOURCE:
            return OWN
        if (own := self._sources.get(source_id)) is not None:
            return own
        other = self._others.get(source_id)
        if other is None:
            any_ = self._sources.get(ANY_SOURCE, Source(ANY_SOURCE))
            if len(self._others) >= OTHERS_KEPT:
                self._others.clear()
            other = self._others[source_id] = replace(any_, source_id=source_id, inbound=None)
        return other

    def all(self) -> Mapping[str, Source]:
        """All sources by source_id, including `*`. The mapping is live."""
        return self._sources

    def may_be_replaced_by_unusable(self, source_id: str) -> bool:
        """Whether no usable entry of the source is in effect."""
        own = self._sources.get(source_id)
        return own is None or own.unusable is not None

    def put(self, source: Source) -> list[str]:
        """Put the source in effect; returns the owners of callbacks that have become usable."""
        source_id, former = source.source_id, self._sources.get(source.source_id)
        waited = former is not None and former.unusable is not None and source.unusable is None
        resumed = [f"s:{each}" for each in (self._others if source_id == ANY_SOURCE else [source_id]) if waited]
        self._sources[source_id] = source
        self._others.clear()
        return resumed

    def drop(self, source_id: str) -> None:
        self._sources.pop(source_id, None)
        self._others.clear()
