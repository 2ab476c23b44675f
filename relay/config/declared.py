"""Who is declared on `receiver_config`, as far as it can be said without anybody's secrets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from relay.config.entries import ReceiverEntry, SourceEntry
from relay.config.receivers_file import ANY_SOURCE, check_entry
from relay.config.registry import ORIGIN, SOURCE_PREFIX, decode
from relay.config.routes import Routes, is_of_route
from relay.domain.errors import UserError
from relay.domain.hold import held_owner
from relay.domain.receiver import Endpoint, Source
from relay.domain.topics import SHARED, Topics
from relay.log.port import LogReader

_SOMEWHERE = Endpoint("")
"""In place of a callback whose URL and secrets this process may not know."""


@dataclass(frozen=True, slots=True)
class Declared:
    """`lanes`: of the receivers with a lane of their own, or with something left in one.

    `sources`: by id; nothing can be sent to their callbacks.
    """

    lanes: frozenset[str]
    sources: Mapping[str, Source]

    def source(self, source_id: str) -> Source:
        """Its own entry, else that of `*`, else a source without callback."""
        found = self.sources.get(source_id) or self.sources.get(ANY_SOURCE) or Source(source_id)
        return replace(found, source_id=source_id)


async def read_declared(log: LogReader, topics: Topics) -> Declared:
    """What the topic says now. An entry that a newer version wrote counts as far as its key tells."""
    lanes: set[str] = set()
    sources: dict[str, Source] = {}
    routes = Routes()
    for record in await log.snapshot(topics.receiver_config, 0):
        key = (record.key or b"").decode(errors="replace")
        if held_owner(record.key or b"") is not None:
            continue
        if is_of_route(key):
            routes.take(key, record.value or b"")
        elif key.startswith(SOURCE_PREFIX):
            source_id = key.removeprefix(SOURCE_PREFIX)
            sources[source_id] = _source(source_id, record.value or b"")
        elif _has_own_lane(key, record.value or b""):
            lanes.add(key)
    own = {name for name, route in routes.all().items() if route.has_own_lane}
    own |= {name for name, last in routes.removed.items() if _has_own_lane(name, last)}
    return Declared(frozenset(lanes | own), sources)


def _has_own_lane(name: str, value: bytes) -> bool:
    try:
        return check_entry(ReceiverEntry, decode(value).entry, ORIGIN, ("receivers", name)).lane != SHARED
    except UserError:
        return True


def _source(source_id: str, value: bytes) -> Source:
    try:
        entry = check_entry(SourceEntry, decode(value).entry, ORIGIN, ("sources", source_id))
    except UserError:
        return Source(source_id)
    called = entry.callback is not None and entry.callback != "kafka"
    return Source(
        source_id,
        callback=_SOMEWHERE if called else None,
        kafka=entry.callback == "kafka",
        answers=entry.answers,
        failures=entry.failures,
    )
