"""A world whose receivers are declared on its own `receiver_config`: every process follows it, and may be the one that
takes them through their moves."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from relay.config.receivers_file import parse_receivers_file
from relay.config.settings import Settings
from relay.control.apply import Diff, apply_file
from relay.control.registry import Registry
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.erasure import Erasure, Erasures
from relay.domain.errors import LogUnavailable
from relay.domain.hot_receivers import HotLane
from relay.domain.route import LaneRoute
from relay.domain.topics import SHARED, TopicSpec
from relay.engine.observer import Observer
from relay.engine.supervision import Retrier
from relay.watch.lane_migration import LaneMigration
from relay.watch.registry import MovedEndpoints
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import until
from tests.fakes.world import Process, World

QUICK = {"base": 1, "factor": 2, "cap": 8, "max_attempts": 4}
"""The retries of receivers, but without jitter only where `Surroundings` is to be exact."""
SOURCES: dict[str, dict[str, Any]] = {"*": {"callback": {"url": "http://sender/callback", "signature": "none"}}}
FEW = 2
"""Partitions of the topics that have many: each is a lane to be run, and a call to be struck at."""


class MovingWorld(World):
    """`entries`: what the receivers file says now, by receiver."""

    def __init__(self, *, settings: Settings | None = None) -> None:
        super().__init__([], settings=settings or Settings(receivers_file="none", hold_max=5.0))
        self.served = None
        self.entries: dict[str, dict[str, Any]] = {}
        self.hot = set[str]()
        self.sources: dict[str, dict[str, Any]] = SOURCES

    async def create(self, name: str | None = None, *path: str, **entry: Any) -> Self:
        """With its topics, and, as `declare` has it, with this receiver."""
        log = await self.client()
        topics = self.topics
        names = (topics.from_sender, topics.to_sender, topics.to_receiver(SHARED), topics.pending(SHARED))
        await log.create([TopicSpec(name, FEW) for name in names], {})
        await log.create(topics.fixed(), topics.fixed_groups())
        if name is not None:
            await self.declare(name, *path, **entry)
        return self

    async def declare(
        self, name: str, path: str = "/answer", *, prune: bool = False, hot: bool = False, **entry: Any
    ) -> Diff:
        """Apply a file in which this receiver is so. `hot`: it also gets, or else loses, the record of a hot one."""
        post = {"post_endpoint": f"http://{name}{path}", "signature": "none", "retry": QUICK}
        self.entries[name] = post | entry
        diff = await self.apply(prune=prune)
        if hot != (name in self.hot):
            self.hot ^= {name}
            value = encode_value(HotLane(self.clock.time(), 0.9)) if hot else None
            await self.append(self.topics.receiver_config, ControlKey("hot", name).encode(), value, ())
        return diff

    async def remove(self, name: str) -> Diff:
        del self.entries[name]
        return await self.apply(prune=True)

    async def apply(self, *, prune: bool = False) -> Diff:
        log = await self.client()
        file = parse_receivers_file(json.dumps({"sources": self.sources, "receivers": self.entries}), "test")
        return await apply_file(log, file, self.topics, prune=prune)

    async def announce(self, name: str, route: LaneRoute) -> None:
        """As the process that looks after the moves would."""
        await self.append(self.topics.receiver_config, ControlKey("route", name).encode(), encode_value(route), ())

    async def erase(self, **what: str) -> None:
        """As an administrator may over the API."""
        erasure = Erasure("e1", self.clock.time(), **what)
        key = ControlKey("erasure", erasure.id).encode()
        await self.append(self.topics.receiver_config, key, encode_value(erasure), ())

    async def registry(self) -> Registry:
        """As the topic says now."""
        registry = Registry(self.topics, {})
        following = asyncio.create_task(registry.follow(await self.client()))
        await registry.ready.wait()
        following.cancel()
        return registry

    async def route(self, name: str) -> LaneRoute:
        return (await self.registry()).lanes.all().get(name, LaneRoute())

    def lanes(self) -> set[str]:
        prefix = self.topics.to_receiver("")
        return {name.removeprefix(prefix) for name in self.broker.specs if name.startswith(prefix)}


class MovingProcess(Process):
    """A process with a registry of its own. `deaf`: what it knows of `receiver_config`, until `hear` is set. `moves`:
    it may look after the moves. `environ`: what entries may refer to in it."""

    def __init__(
        self,
        world: MovingWorld,
        fuse: Fuse | None = None,
        *,
        deaf: Registry | None = None,
        moves: bool = True,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._moved = MovedEndpoints(lambda owner: self.resumed(owner))
        self.registry = deaf or Registry(
            world.topics, environ, lambda owner: self.resumed(owner), moved=self._moved.note
        )
        self.hear = asyncio.Event()
        self._moves = moves
        if deaf is None:
            self.hear.set()
        super().__init__(world, fuse)

    async def ready(self) -> Self:
        """Wait until it has read its receivers."""
        await self.registry.ready.wait()
        return self

    async def finish(self) -> None:
        """Stop it once nothing is left to be done."""
        await until(self._world.is_at_rest)
        await self.stop()

    def _known(self) -> Registry:
        return self.registry

    def _erasures(self) -> Erasures:
        return self.registry.erasures

    def _changes(self) -> AsyncIterator[int]:
        return self.registry.changes()

    def _beside(self, log: Any, state: Any) -> Sequence[Coroutine[Any, Any, None]]:
        room = self._world.settings.parked_per_receiver // 4
        topics, owner = self._world.topics, f"process-{id(self)}"
        mover = LaneMigration(log, state, topics, self.registry, self._clock, owner=owner, room=room)
        following = self._follow(_HardOfHearing(log, self.hear))
        resumed = self._moved.run(state, Retrier(self._clock, Observer()))
        beside = (following, resumed, *super()._beside(log, state))
        return (*beside, mover.run()) if self._moves else beside

    async def _follow(self, log: Any) -> None:
        while True:
            try:
                await self.registry.follow(log)
            except LogUnavailable:
                await asyncio.sleep(1)


class _HardOfHearing:
    """A log whose followers hear nothing before `hear` is set."""

    def __init__(self, log: Any, hear: asyncio.Event) -> None:
        self._log = log
        self._hear = hear

    def __getattr__(self, method: str) -> Any:
        return getattr(self._log, method)

    async def follow(self, topic: str, *, start: int | None = None) -> AsyncIterator[Any]:
        await self._hear.wait()
        async for record in self._log.follow(topic, start=start):
            yield record
