"""Reads the declared receivers and sources from `receiver_config` without resolving secrets."""

from collections.abc import Collection
from dataclasses import dataclass

from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import Raw, check_entry
from relay.config.source_entry import SourceEntry
from relay.control.records import ORIGIN, read_topic
from relay.control.resolve import EffectiveSources
from relay.domain.control_key import control_key
from relay.domain.errors import UserError
from relay.domain.receiver import Endpoint, Source
from relay.domain.topics import SHARED, Topics
from relay.log.port import LogReader
from relay.state.rows import TAGS, tag_of

_SOMEWHERE = Endpoint("")
"""Stands for a callback whose URL and secrets are not resolved."""


@dataclass(frozen=True, slots=True)
class DeclaredEntries:
    """`lanes`: names of the receivers with a lane of their own, or with records left in one. `sources`: their callbacks
    are not usable."""

    lanes: frozenset[str]
    sources: EffectiveSources


async def read_declared(log: LogReader, topics: Topics) -> DeclaredEntries:
    """The current content of the topic. Only the key is used of an entry that a newer version wrote."""
    there = await read_topic(log, topics)
    own = there.declared.own()
    keys = [control_key(text) for text in own]
    sources = EffectiveSources()
    for key in (each for each in keys if each.kind == "source"):
        sources.put(_source(key.id, there.declared[key.text].entry))
    names = [key.id for key in keys if key.kind == "receiver"]
    lanes = {name for name in names if _has_own_lane(name, there.declared[name].entry)}
    lanes |= {name for name, route in there.routes.all().items() if route.has_own_lane}
    lanes |= {name for name in there.routes.removed if _has_own_lane(name, there.last_entry(name))}
    return DeclaredEntries(frozenset(lanes), sources)


async def lanes_of_receivers(log: LogReader, topics: Topics) -> dict[str, Collection[int]]:
    """Topic of each lane -> hash tags of its receivers."""
    own = (await read_declared(log, topics)).lanes
    return {topics.to_receiver(SHARED): range(TAGS), **{topics.to_receiver(one): {tag_of(f"r:{one}")} for one in own}}


def _has_own_lane(name: str, entry: Raw) -> bool:
    try:
        return check_entry(ReceiverEntry, entry, ORIGIN, ("receivers", name)).lane != SHARED
    except UserError:
        return True


def _source(source_id: str, raw: Raw) -> Source:
    try:
        entry = check_entry(SourceEntry, raw, ORIGIN, ("sources", source_id))
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
