"""A running API on in-memory log and state, and a client that sends exact bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, Literal, TypeVar

import pytest
from aiohttp import ClientSession, ClientTimeout, CookieJar
from click import Command
from click.testing import CliRunner, Result
from structlog.testing import capture_logs
from yarl import URL

from relay.api.context import ApiContext
from relay.api.origin_check import WebRules
from relay.api.peers import Peers
from relay.api.registrar import Registrar
from relay.api.server import ApiServer
from relay.api.shares import shares_of_live_pages
from relay.clock import SystemClock
from relay.config.encryption import KeyRing
from relay.config.limits import ApiLimits
from relay.config.setting_layers import load_settings, origins_of
from relay.config.settings import Settings
from relay.control.patch import Rules
from relay.control.projections import Catalogue, ErasureService, Jobs
from relay.control.records import ControlWriter
from relay.control.registry import Registry
from relay.control.subscriptions import Subscriptions
from relay.delivery.egress import blocked_endpoint
from relay.delivery.port import Transport
from relay.domain.control_key import JOBS, decode_key
from relay.domain.diagnosis import Diagnosis, fine
from relay.domain.errors import StateUnavailable
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.expression import Expression
from relay.domain.receiver import Endpoint, EventSchemas, Inbound, Quota, Receiver, Source
from relay.domain.recipients import receiver_of
from relay.domain.topics import Topics
from relay.history.port import History
from relay.log.port import Record
from relay.pages.web import create_pages
from relay.replay.replay_service import ReplayService
from tests.fakes import steps
from tests.fakes.history import MemoryHistory
from tests.fakes.keys import MemoryKeys
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.no_moves import NoMoves
from tests.fakes.state import MemoryState
from workers.dependencies import Meter

NOW = 1_700_000_000.0
NEW_KEY, OLD_KEY = b"n" * 32, b"o" * 32
"""Encrypt secrets at rest."""
SECRET = b"answers are signed with this"
MADE_SECRET = "whsec_bWFkZS1tYWRlLW1hZGUtbWFkZS1tYWRlLW1hZGU="
"""The secret of a receiver that is registered without one."""
GIVEN = {"RELAY_HOLD_MAX": "7", "RELAY_ANSWER_SECRET": "nobody-is-shown-this"}
"""Settings that the settings page shows."""
PAYLOAD_CAP = 10_000
ANSWER_CAP = 1_000
_NO_EVENTS: Final = MemoryHistory()
T = TypeVar("T")


class AwayState(MemoryState):
    """`away`: names of the methods that raise StateUnavailable. `asked`: names of the called methods."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: NOW)
        self.away: set[str] = set()
        self.asked: list[str] = []
        for name in ("arrive", "charge", "keys_used", "lease", "mark", "messages", "row_details", "settle", "use_keys"):
            setattr(self, name, partial(self._unless_away, name, getattr(self, name)))

    async def _unless_away(self, name: str, method: Callable[..., Awaitable[T]], *args: Any, **named: Any) -> T:
        self.asked.append(name)
        result = await method(*args, **named)
        if name in self.away:  # the effect of a call that failed is unknown: here it had one
            raise StateUnavailable("refused")
        return result


class Known:
    """A directory: receivers `ci`, `cd` and, for everything of `github`, `audit`; the source `calls` has a callback."""

    def __init__(self) -> None:
        post = Endpoint("https://receiver.example/hooks")
        audit = Receiver("audit", post, sources=("github",), event_types=("*",))
        self.receivers = {name: Receiver(name, post) for name in ("ci", "cd")} | {"audit": audit}
        self.refused: dict[str, str] = {}
        self.inbound: dict[str, Inbound] = {}
        self.quotas: dict[str, Quota | Literal["none"]] = {}
        self.event_schemas: dict[str, EventSchemas] = {}
        self.unusable: dict[str, str] = {}
        """Sources whose settings this process cannot use, and why."""
        self.keep: Mapping[str, Expression] | None = {}
        """What each source keeps."""

    def receiver(self, name: str) -> Receiver | None:
        return self.receivers.get(name)

    def refusal(self, name: str) -> str | None:
        return self.refused.get(name)

    def removed(self, name: str) -> Receiver | None:
        return None

    def source(self, source_id: str) -> Source:
        callback = Endpoint("https://sender.example/results") if source_id == "calls" else None
        inbound, quota = self.inbound.get(source_id), self.quotas.get(source_id)
        return Source(
            source_id,
            callback,
            inbound=inbound,
            quota=quota,
            unusable=self.unusable.get(source_id),
            keep=self.keep,
            event_schemas=self.event_schemas.get(source_id, "off"),
        )

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        return Subscriptions(self.receivers.values()).match(source_id, event_type)

    def filtered(self, source_id: str, event_type: str | None) -> list[str]:
        return [name for name in self.subscribers(source_id, event_type) if self.receivers[name].filter is not None]


class OneReply(Transport):
    """Answers every request with `reply` after `seconds` of `clock`. `reply` None: requests stay in `waiting`."""

    def __init__(self, clock: "StandingClock") -> None:
        self._clock = clock
        self.seconds = 0.0
        self.reply: Exchange | None = Response(204, {}, b"")
        self.requests: list[Request] = []
        self.waiting: list[Callable[[Exchange], None]] = []
        self.asked = asyncio.Event()

    async def start(self) -> None:
        return

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        self.requests.append(request)
        self._clock.now += self.seconds
        self.asked.set()
        if self.reply is None:
            self.waiting.append(done)
        else:
            asyncio.get_running_loop().call_soon(done, self.reply)

    async def close(self) -> None:
        return


class StandingClock(steps.StandingClock):
    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        await event.wait()


@dataclass(frozen=True)
class Reply:
    """A response, its body read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Rig:
    """A running API at `url`. `context`: its dependencies. `trouble`: the failed parts that /readyz reports."""

    url: str
    context: ApiContext
    server: ApiServer
    client: ClientSession
    broker: MemoryBroker
    log: MemoryLog
    state: AwayState
    topics: Topics
    directory: Known
    clock: StandingClock
    keys: MemoryKeys
    transport: OneReply
    trouble: dict[str, str | None] = field(default_factory=dict)

    async def request(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """`target`: raw path and query."""
        url = URL(self.url + target, encoded=True)
        async with self.client.request(method, url, data=body, headers=headers, allow_redirects=False) as response:
            return Reply(response.status, response.headers, await response.read())

    async def post(self, target: str, body: bytes = b"{}", **headers: str) -> Reply:
        """POST a message. Names of `headers` have `_` instead of `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.request("POST", target, body, named)

    async def get(self, target: str, **headers: str) -> Reply:
        return await self.request("GET", target, headers=headers)

    async def raw(self, data: bytes, *, half_close: bool = False) -> tuple[int, bytes]:
        """Status and body of the response to raw bytes."""
        port = URL(self.url).port
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        if half_close:
            writer.write_eof()
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()
        return int(head.split()[1]), body

    def records(self, topic: str) -> list[Record]:
        return self.broker.records(topic)


async def no_handshake(_receiver: Receiver) -> None:
    """As if a handshake were in progress."""


async def examine(receiver: str | None) -> Diagnosis:
    """A doctor that finds no problem."""
    return Diagnosis(NOW, (fine("log", "in memory", receiver),))


@asynccontextmanager
async def running_api(
    *,
    api_key: str | None = None,
    answer_secrets: Sequence[bytes] = (SECRET,),
    metrics: Callable[[], bytes] = lambda: b"m 1\n",
    peers: Peers | None = None,
    web: WebRules | None = None,
    limits: ApiLimits | None = None,
    meter: Meter | None = None,
    key_quota: Quota | None = None,
    source_quota: Quota | None = None,
    may_be_open: bool = True,
    own_key: str | None = None,
    metrics_key: str | None = None,
    pages: bool = False,
    session_secrets: Sequence[bytes] = (b"sessions are signed with this",),
    public_url: str | None = None,
    history: History | None = _NO_EVENTS,
    keeps_bodies: bool = True,
    strict_json: bool = False,
    adhoc_endpoints: Sequence[str] = (),
    secrets_keys: Sequence[bytes] = (NEW_KEY, OLD_KEY),
) -> AsyncIterator[Rig]:
    """An API on a free port, over an empty log and an empty, ready state."""
    broker, topics, state, clock, directory = MemoryBroker(), Topics("t-"), AwayState(), StandingClock(), Known()
    log, transport = MemoryLog(broker), OneReply(clock)
    await log.start()
    await log.create(topics.fixed(), {})
    keys = MemoryKeys(log, topics.receiver_config)
    trouble: dict[str, str | None] = {"log": None, "state": None}
    ids = (f"new-{n}" for n in count())
    variables = {"DEPLOY_SECRET": "s-4711"}
    ring = KeyRing(secrets_keys)
    directory.receivers |= {one.name: one for one in map(receiver_of, adhoc_endpoints)}
    registry, rules = Registry(topics, variables, ring=ring), Rules(variables, variables, ring)
    writer = ControlWriter(log, topics.receiver_config, registry.reach)
    registrar = Registrar(log, state, topics, registry, SystemClock(), rules, lambda: MADE_SECRET, owner="rig")
    following = asyncio.create_task(registry.follow(log))
    jobs = Jobs()

    async def reach(_offset: int) -> None:
        for record in broker.records(topics.receiver_config):
            if (key := decode_key(record.key)) is not None and key.kind in JOBS:
                jobs.take(key, record)

    replay_service = ReplayService(
        log,
        state,
        topics,
        directory,
        NoMoves(),
        jobs,
        clock,
        lanes=lambda: directory.receivers,
        known_to=reach,
        max_payload_bytes=PAYLOAD_CAP,
        erasures=registry.erasures,
    )
    context = ApiContext(
        log=log,
        state=state,
        topics=topics,
        directory=directory,
        registrar=registrar,
        metrics_text=metrics,
        ready=lambda: trouble,
        api_key=api_key,
        answer_secrets=answer_secrets,
        max_payload_bytes=PAYLOAD_CAP,
        answer_body_cap=ANSWER_CAP,
        clock=clock,
        meter=meter or Meter(),
        new_id=lambda: next(ids),
        peers=peers,
        web=web or WebRules(),
        limits=limits or ApiLimits(),
        key_quota=key_quota,
        source_quota=source_quota,
        keys=keys,
        catalogue=Catalogue(writer, registry.event_types),
        erasures=ErasureService(writer, registry.erasures, history),
        transport=transport,
        own_key=own_key,
        metrics_key=metrics_key,
        session_secrets=session_secrets,
        public_url=public_url,
        history=history,
        may_be_open=may_be_open,
        strict_json=strict_json,
        adhoc_endpoints=adhoc_endpoints,
        ring=ring,
        blocked_endpoint=partial(blocked_endpoint, Settings(receivers_file="none")),
        pages=partial(create_pages, now=clock.time, shares=shares_of_live_pages(meter or Meter())) if pages else None,
        examine=examine,
        verify=no_handshake,
        replays=replay_service,
        keeps_bodies=keeps_bodies,
        settings=origins_of(load_settings({}, GIVEN)),
    )
    server = ApiServer(context)
    port = await server.start("127.0.0.1", 0)
    try:
        async with ClientSession(timeout=ClientTimeout(total=20), cookie_jar=CookieJar(unsafe=True)) as client:
            url = f"http://127.0.0.1:{port}"
            yield Rig(
                url, context, server, client, broker, log, state, topics, directory, clock, keys, transport, trouble
            )
    finally:
        await server.stop()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """The same, for a test."""
    async with running_api() as running:
        yield running


async def run_command(
    url: str, command: Command, *words: str, key: str | None = None, given: bytes | None = None
) -> Result:
    """Run a command that asks the API at `url`. The log of the API, which is in this process, is no part of its
    output."""
    runner = CliRunner(env={} if key is None else {"RELAY_API_KEY": key})
    with capture_logs():
        return await asyncio.to_thread(runner.invoke, command, [*words, "--api", url], given)


async def pages(get: Callable[[str], Awaitable[Reply]], target: str) -> AsyncIterator[Any]:
    """Each page of a list, from the first to the last one. `target` has a query."""
    cursor = ""
    while True:
        page = document(await get(target + cursor))
        yield page
        if page["cursor"] is None:
            return
        cursor = f"&cursor={page['cursor']}"


def document(reply: Reply) -> Any:
    """The JSON in a response."""
    return json.loads(reply.body)


def problem(reply: Reply, status: int, name: str) -> Any:
    """The problem details in a response, checked for their form."""
    found = document(reply)
    assert (reply.status, found["status"], found["type"]) == (status, status, f"/problems/{name}")
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert set(found) == {"type", "title", "status", "detail", "instance", "errors"}
    return found
