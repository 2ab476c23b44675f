"""A relay with tenants, in one process and in memory: workers, registry, mover, history and API over one log and state.

Each tenant has a canary in the ids and payloads of its messages, and in its receivers' URLs, headers and answers. A
caller that sees another tenant's canary has found a leak.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from aiohttp import ClientSession

from relay.api.context import ApiContext
from relay.api.registrar import Registrar
from relay.api.routes import ROUTES
from relay.api.server import ApiServer
from relay.clock import SystemClock
from relay.config.encryption import NO_KEYS
from relay.config.limits import ApiLimits
from relay.control.patch import Rules
from relay.control.projections import Catalogue, ErasureService
from relay.control.records import ControlWriter
from relay.control.registry import Registry
from relay.delivery.port import Transport
from relay.domain.coordinate import Coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.scope import parse_scope
from relay.log.port import Record, TopicPartition
from relay.replay.replay_service import ReplayService
from relay.replay.runner import ReplayRunner
from tests.fakes.history import MemoryHistory
from tests.fakes.keys import MemoryKeys
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.integration.api_rig import Reply
from workers.history_facts import FactReader, batch_of

__all__ = ["ADMIN", "CALLBACK", "Tenants", "canary", "tenants"]

ADMIN: Final = "admin"
CALLBACK: Final = "canary-of-the-callback"
"""Part of the callback's URL, and of its responses."""
SOURCE: Final = "shop"
KINDS: Final = ("answer", "later", "reject", "down")
"""A receiver's behaviour, by the host of its URL: 200 with an answer, 202, a rejection, or a refused connection."""


def canary(who: str) -> str:
    return f"canary-of-{who}"


class Outside(Transport):
    """Receivers and the callback. `refuses`: the callback fails all requests. `posts`: pairs of recipient and body."""

    def __init__(self) -> None:
        self.refuses = False
        self.posts: list[tuple[str, bytes]] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    def send(self, request: Request, done: Any) -> None:
        async def make() -> None:
            await asyncio.sleep(0.001)
            done(self._reply(request))

        task = asyncio.get_running_loop().create_task(make())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _reply(self, request: Request) -> Exchange:
        kind, _, who = request.url.removeprefix("http://").partition("/")
        self.posts.append((request.url, request.body + repr(request.headers).encode()))
        said = json.dumps({"said": who}).encode()
        match kind:
            case "callback":
                return Response(400 if self.refuses else 204, {"x-said": who}, said if self.refuses else b"")
            case "later":
                return Response(202, {"x-said": who}, b"{}")
            case "reject":
                return Response(422, {"x-said": who}, said)
            case "down":
                return NoResponse("refused", f"{who} does not listen", sent=False)
        return Response(200, {"x-said": who, "content-type": "application/json"}, said)


@dataclass
class Tenants:
    """The relay and its callers. `keys`: headers by caller."""

    url: str
    world: MovingWorld
    outside: Outside
    history: MemoryHistory
    registry: Registry
    keys: dict[str, dict[str, str]]
    made: MemoryKeys
    client: ClientSession
    sent: list[str] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    """Ids of the incidents seen so far."""
    heard: dict[str, str] = field(default_factory=dict)
    """The events of the live tail so far, by caller."""
    _numbers: Iterator[int] = field(default_factory=count)
    _recorded: dict[TopicPartition, int] = field(default_factory=dict)

    async def ask(self, who: str, method: str, path: str, body: object = None, **headers: str) -> Reply:
        data = b"" if body is None else json.dumps(body).encode()
        said = {"Content-Type": "application/json"} | self.keys[who] | headers
        async with self.client.request(method, self.url + path, data=data, headers=said) as response:
            return Reply(response.status, response.headers, await response.read())

    async def key(self, who: str, *scopes: str) -> None:
        made = await self.made.create("", frozenset(map(parse_scope, scopes)), None, by="test", now=1.0)
        self.keys[who] = {"Authorization": f"Bearer {made.text}"}

    async def listen(self, who: str) -> None:
        """Read the live tail until cancelled."""
        self.heard[who] = ""
        while True:
            async with self.client.get(f"{self.url}/v1/tail", headers=self.keys[who]) as response:
                async for line in response.content:
                    self.heard[who] += line.decode()

    # changes

    async def register(self, who: str, name: str, kind: str = "answer", *, by: str | None = None, **more: Any) -> int:
        """Returns the status. `by`: an administrator may do it for `who`."""
        entry = {
            "name": name,
            "post_endpoint": f"http://{kind}/{canary(who)}",
            "signature": "none",
            "answer_deadline": 1,
            "breaker": {"failures": 1_000},
            "retry": {"base": 0.01, "factor": 1, "cap": 0.01, "max_attempts": 2},
            **({} if by is None else {"owner": who}),
        }
        return (await self.ask(by or who, "POST", "/v1/receivers", entry | more)).status

    async def remove(self, who: str, name: str) -> None:
        assert (await self.ask(who, "DELETE", f"/v1/receivers/{name}")).status == 200

    async def send(self, who: str, *names: str) -> str:
        """A message for tenant `who`; returns its id."""
        id = f"m-{next(self._numbers)}-{canary(who)}"
        self.sent.append(id)
        path = f"/v1/sources/{SOURCE}/messages?receiver={','.join(names)}"
        body = {"for": canary(who)}
        reply = await self.ask("sender", "POST", path, body, **{"ce-id": id, "ce-type": canary(who)})
        assert reply.status == 202, reply.text
        return id

    async def settle(self) -> None:
        """Return when all records are processed and in the history."""
        await _until(lambda: not self.world.uncommitted())
        await asyncio.sleep(0.3)  # attempts are written each quarter of a second
        await self._update_history()

    async def away(self, name: str) -> None:
        """Return when a removed receiver's name is free again."""
        await _until(lambda: not self.registry.is_gone(name))

    async def _update_history(self) -> None:
        topics, reader = self.world.topics, FactReader(self.world.topics, 10_000)
        for topic in (topics.from_sender, topics.delivery_attempts, topics.to_sender, topics.failed_messages):
            for place in self.world.broker.partitions_of(topic):
                first, records = self._recorded.get(place, 0), self.world.broker[place].records
                facts = [fact for record in records[first:] if (fact := _fact(reader, record)) is not None]
                await self.history.write(batch_of(facts), {place: len(records)}, {place: first})
                self._recorded[place] = len(records)

    # requests

    def reads(self) -> Iterator[str]:
        """Every GET route, for every record."""
        letters = [record.coordinate for record in self._records(self.world.topics.failed_messages)]
        for method, template in ROUTES:
            if method == "GET" and template not in ("/v1/tail",):
                for values in self._values(template, letters):
                    yield template.format_map(values)
        for query in ("receiver=ci", "status=failed", "owner=alice", "reason=callback_rejected"):
            yield f"/v1/messages?{query}"
        yield "/v1/failed?receiver=ci"
        yield "/v1/stats?by=minute&receiver=ci"

    def changes(self) -> Iterator[tuple[str, object]]:
        """Every POST that replays or discards, for every record."""
        letters = [record.coordinate for record in self._records(self.world.topics.failed_messages)]
        for action in ("replay", "discard"):
            for at in letters:
                yield f"/v1/failed/{at.partition}/{at.offset}/{action}", None
            for id in self.sent:
                more = {"only_failed": False} if action == "replay" else None
                yield f"/v1/sources/{SOURCE}/messages/{id}/deliveries/ci/{action}", more
            for chosen in ({}, {"stage": "to_sender"}, {"reason": "callback_rejected"}):
                yield f"/v1/{action}s", {"receiver": "ci"} | chosen | {"dry_run": True}
                yield f"/v1/{action}s", {"receiver": "ci"} | chosen
        yield "/v1/replays", {"receiver": "ci", "only_failed": False}

    def _values(self, template: str, letters: list[Coordinate]) -> Iterator[Mapping[str, object]]:
        if template.startswith("/v1/attempts/"):
            letters = [record.coordinate for record in self._records(self.world.topics.delivery_attempts)]
        if "{partition}" in template:
            yield from ({"partition": at.partition, "offset": at.offset} for at in letters)
        elif "{message_id}" in template:
            yield from ({"source_id": SOURCE, "message_id": id} for id in self.sent)
        else:
            yield {"source_id": SOURCE, "name": "ci", "id": "0" * 16, "type": "push", "token": "none"}

    def _records(self, topic: str) -> Iterator[Record]:
        for place in self.world.broker.partitions_of(topic):
            yield from self.world.broker[place].records

    def leak(self, reply: Reply, path: str, *own: str) -> str | None:
        """A canary in the reply to `path`, apart from `path` itself, that belongs to none of these tenants; or None."""
        return self.leak_in(f"{reply.text}{reply.headers}".replace(path.partition("?")[0], ""), *own)

    def leak_in(self, text: str, *own: str) -> str | None:
        others = [canary(who) for who in ("alice", "bob", "carol") if who not in own]
        return next((each for each in (*others, *(() if "sender" in own else (CALLBACK,))) if each in text), None)


async def _until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not met():  # noqa: ASYNC110 - dictionaries have no event to wait for
            await asyncio.sleep(0.02)


def _fact(reader: FactReader, record: Record) -> Any:
    try:
        return reader.of(record)
    except InvalidRecord:
        return None


@asynccontextmanager
async def tenants() -> AsyncIterator[Tenants]:
    """Keys of the owners `alice` and `bob`, of `carol`, who has one for the receiver `ci` alone, of an administrator,
    and of the sender."""
    world = MovingWorld()
    world.attempt_log = 1.0
    outside = Outside()
    world.outside = outside  # type: ignore[assignment]
    world.sources = {SOURCE: {"callback": {"url": f"http://callback/{CALLBACK}", "signature": "none"}}}
    await world.create()
    await world.apply()
    process = MovingProcess(world)
    log, topics, clock = await world.client(), world.topics, world.clock
    registry = process.registry
    await registry.ready.wait()
    made, history = MemoryKeys(log, topics.receiver_config), MemoryHistory()
    rules = Rules({}, {}, NO_KEYS)
    registrar = Registrar(log, world.state, topics, registry, SystemClock(), rules, lambda: "", owner="api")
    replay_service = ReplayService(
        log,
        world.state,
        topics,
        registry,
        registry,
        registry.jobs,
        clock,
        lanes=registry.receivers,
        known_to=registry.reach,
        max_payload_bytes=100_000,
    )
    ids = (f"new-{number}" for number in count())
    writer = ControlWriter(log, topics.receiver_config, registry.reach)
    unused: Any = None
    context = ApiContext(
        log=log,
        state=world.state,
        topics=topics,
        directory=registry,
        metrics_text=lambda: b"",
        ready=dict,
        api_key="the key of the settings",
        answer_secrets=(b"answers are signed with this",),
        max_payload_bytes=100_000,
        answer_body_cap=100_000,
        clock=clock,
        new_id=lambda: next(ids),
        registrar=registrar,
        replays=replay_service,
        keys=made,
        catalogue=Catalogue(writer, registry.event_types),
        erasures=ErasureService(writer, registry.erasures, history),
        verify=unused,
        transport=unused,
        examine=unused,
        history=history,
        limits=ApiLimits(wait_s=0.01, listen_s=60.0),
    )
    runner = asyncio.create_task(ReplayRunner(log, world.state, topics, replay_service, clock, owner="runner").run())
    server = ApiServer(context)
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        async with ClientSession() as client:
            found = Tenants(url, world, outside, history, registry, {}, made, client)
            await found.key("alice", "owner:alice")
            await found.key("bob", "owner:bob")
            await found.key("carol", "receiver:ci")
            await found.key("sender", f"ingest:{SOURCE}", f"read:{SOURCE}")
            await found.key(ADMIN, "admin")
            ears = [asyncio.create_task(found.listen(who)) for who in ("alice", "bob", "carol")]
            yield found
            for ear in ears:
                ear.cancel()
            await asyncio.gather(*ears, return_exceptions=True)
    finally:
        await server.stop()
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        await process.stop()
