"""A relay whose receivers move between lanes while it is under test."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast

from relay.api.context import ApiContext
from relay.config.receivers_file import parse_receivers_file
from relay.config.settings import Settings
from relay.control.apply import awaited
from relay.control.resolve import lanes_of_receivers
from relay.control.routes import LaneRoutes
from relay.domain.control_key import ROUTES, decode_key
from relay.domain.receiver import Receiver
from relay.domain.route import marker_in
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.world import Known, World
from tests.faults.simulation.fates import Fate
from tests.faults.simulation.lacking import Crewed
from tests.faults.simulation.outside import PATIENCE_S
from tests.faults.simulation.scene import Scene
from tests.faults.simulation.setups import Setup

Place = Literal["own", "more partitions", "shared", "hot"]
"""Where a receiver is to be: in its own lane, with more partitions or not, or in the shared one, unless it is hot."""
MORE = 3

_WAITS: dict[str, Any] = {
    "timeout": PATIENCE_S,
    "retry": {"base": 16, "factor": 1, "cap": 16, "max_attempts": 10_000},
    "answer_deadline": "1d",
}
ENTRIES: dict[str, dict[str, Any]] = {
    "answer": {"status_endpoint": "http://answer/answer/{message_id}", "max_in_flight": 1, "lane": "shared"},
    "later": {"status_endpoint": "http://later/later/{message_id}", "rate_limit": 2, "lane": "shared"},
    "blind": {"max_in_flight": 1, "lane": "dedicated"},
    "fail": {
        "retry": {**_WAITS["retry"], "max_attempts": 2},
        "breaker": {"failures": 10_000},
        "rate_limit": 3,
        "window_size": 2,
        "lane": "shared",
    },
    "ci": {"preset": "circleci", "lane": "dedicated"},
    "caller": {"max_in_flight": 2, "lane": "dedicated"},
    "batches": {
        "status_endpoint": "http://batches/batches/{message_id}",
        "batch": {"max_events": 4, "max_bytes": 1_100_000, "linger": 0.5},
        "max_in_flight": 2,
        "rate_limit": 4,
        "lane": "shared",
    },
    "lists": {
        "status_endpoint": "http://lists/lists/{message_id}",
        "batch": {"max_events": 3, "linger": 0.05, "format": "list"},
        "ordering": "receiver",
        "breaker": {"failures": 3},
        "lane": "dedicated",
    },
}
"""As those of the other machines, in the lanes where they begin."""


def resolved(entries: Mapping[str, dict[str, Any]]) -> list[Receiver]:
    entries = {
        name: {"post_endpoint": f"http://{name}/{name}", "signature": "none", **_WAITS, **entry}
        for name, entry in entries.items()
    }
    receivers, _ = parse_receivers_file(json.dumps({"receivers": entries})).resolve({})
    return list(receivers.values())


class Lagging(Crewed, MovingProcess):
    """One that lacks anything has read nothing of `receiver_config` since it was started."""

    def __init__(self, world: MovingWorld, fate: Fate, lacks: Collection[str], **how: Any) -> None:
        self.lacks = frozenset(lacks)
        super().__init__(world, fate, **how)

    def learn(self) -> None:
        self.lacks = frozenset()
        self.hear.set()

    async def _topics_of_deliveries(self) -> dict[str, Collection[int]]:
        return await lanes_of_receivers(self.log, self._world.topics)


class MovingSetup(Setup):
    entries: Mapping[str, dict[str, Any]] = ENTRIES

    async def declare(self, world: World) -> None:
        for name, entry in self.entries.items():
            await place_in(cast("MovingWorld", world), name, entry)


MOVING = MovingSetup(
    resolved(ENTRIES),
    Settings(receivers_file="none", hold_max=5.0, memory_budget=2_000_000, window_records=8, window_offsets=40),
)
"""Lanes whose bounds a dozen messages exceed."""


@dataclass
class MovingScene(Scene):
    world: MovingWorld
    setup: MovingSetup
    makes: ClassVar[type[MovingWorld]] = MovingWorld

    @classmethod
    async def opened(cls, setup: Setup = MOVING) -> Self:
        world = cls.makes(settings=setup.settings)
        world.known = Known(setup.receivers, ())
        return await cls._around(world, setup)

    async def move(self, name: str, place: Place) -> None:
        """Its entry says so; the processes do the rest."""
        await place_in(self.world, name, self.setup.entries[name], place)

    def shorten_log(self) -> None:
        """Retention removes finished records."""
        broker = self.world.broker
        for topic, group in self.world.topics.groups(self.world.lanes()).items():
            for at in broker.partitions_of(topic):
                broker[at].first = max(broker[at].first, broker.finished(group, at))

    async def _receiver(self, name: str) -> Receiver:
        found = (await self.world.registry()).receiver(name)
        assert found is not None
        return found

    async def _process(self, fate: Fate, lacks: Collection[str]) -> Lagging:
        if lacks:
            return Lagging(self.world, fate, lacks, deaf=await self.world.registry())
        return Lagging(self.world, fate, lacks)

    async def _unfinished(self) -> str | None:
        if (rest := await super()._unfinished()) is not None:
            return rest
        moves = await awaited(await self.world.client(), self.world.topics)
        return "; ".join(f"{name} {text}" for name, text in moves.items()) or None

    async def _api(self) -> ApiContext | None:
        context = await super()._api()
        return context and replace(context, directory=await self.world.registry())

    def wrongs(self) -> list[str]:
        return [*super().wrongs(), *wrong_cuts(self.world)]


async def place_in(world: MovingWorld, name: str, own: dict[str, Any], place: Place | None = None) -> None:
    """`own`: its entry. `place`: None where it begins."""
    entry: dict[str, Any] = world.entries.get(name, {}) | _WAITS | own
    if place is not None:
        entry["lane"] = "dedicated" if place in ("own", "more partitions") else "shared"
    entry.pop("partitions", None)
    if entry["lane"] == "dedicated" and entry.get("ordering") != "receiver":
        known = world.broker.specs.get(world.topics.to_receiver(name))
        has = 1 if known is None else known.partitions  # which cannot be removed
        entry["partitions"] = MORE if place == "more partitions" else has
    await world.declare(name, f"/{name}", hot=place == "hot", **entry)


def wrong_cuts(world: MovingWorld) -> Iterator[str]:
    """Once the marker of a running move is committed, all processes can read where it takes effect."""
    routes = LaneRoutes()
    for record in world.broker.records(world.topics.receiver_config):
        key = decode_key(record.key)
        if key is not None and key.kind in ROUTES and record.value is not None:
            routes.take(key, record.value)
    topic, broker = world.topics.from_sender, world.broker
    for at in broker.partitions_of(topic):
        for record in broker[at].written(broker.finished(world.topics.fixed_groups()[topic], at)):
            marker = marker_in(record.headers)
            if marker is not None and routes.is_in_progress(marker):
                cut = routes.cut(marker.name, marker.version, at.partition)
                if cut is None or cut > record.offset:
                    yield f"I2: {topic}/{record.offset} is committed, and its move of {marker.name} has no cut there"
