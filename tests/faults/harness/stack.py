"""A relay under test and its environment: topics of its own, receivers that never crash, and relay processes that are
killed."""

import asyncio
import contextlib
import json
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import redis.asyncio
from aiokafka.errors import KafkaError

from bench.children import Child, own_environ
from relay.domain.topics import Topics
from tests.faults.harness.doors import API, Doors
from tests.faults.harness.following import Follower
from tests.faults.harness.history import Asked, Died, Fault, History, Key, Peak, Ping, Promise, Record, Returned, Sent
from tests.faults.harness.ledger import Ledger
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.member import Member
from tests.faults.harness.proxy import Proxy
from tests.faults.harness.receivers import (
    CALLBACKS,
    MIX,
    MOST_SOURCES,
    OF_SOME,
    QUICK,
    SECRET,
    ReceiverPlan,
    tenant_of,
)
from tests.faults.harness.servers import Servers
from tests.faults.harness.topics import TopicReader

ROLES: Final = ("from-sender", "to-receiver", "from-receiver-async", "to-sender", "failed-messages")
OUTSIDE: Final = "tests.faults.harness.outside"
_LOOK_S: Final = 0.3


class Stack:
    """Runs during the `async with` block, on `servers`. Many trials use one stack, each with messages of its own.

    `directory`: where logs and ledgers go. `settings`: further environment of the relay's processes. `wired`: the relay
    reaches receivers and callbacks through a proxy, `wire`. `has_doors`: its processes have the HTTP API, which some of
    the sources use.
    """

    def __init__(
        self,
        servers: Servers,
        directory: Path,
        receivers: Mapping[str, ReceiverPlan] = MIX,
        *,
        seed: int = 0,
        settings: Mapping[str, str] | None = None,
        session_timeout_s: float = 2.0,
        wired: bool = False,
        has_doors: bool = False,
    ) -> None:
        self.servers = servers
        self.directory = directory
        self.receivers = receivers
        self.random = random.Random(seed)
        self.members: dict[str, Member] = {}
        self.poisoned = False
        """Dead letters without ids are expected here; they belong to no trial."""
        self.sent: list[Sent] = []
        self.told: list[Record] = []
        """The records read from both ledgers."""
        self.wire: Proxy | None = None
        self.doors = Doors(seed) if has_doors else None
        self._wired = wired
        self._seed = seed
        self._prefix = f"f{secrets.token_hex(3)}-"
        self.topics = Topics(self._prefix)
        self._settings = dict(settings or {})
        self._session_timeout_s = session_timeout_s
        self._numbers: Counter[str] = Counter()
        self._trials = 0
        self._lags: dict[str, int] = {}
        self._answered: set[Key] = set()
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def promises(self) -> dict[str, Promise]:
        callbacks = {
            name: Promise(asked=False, ordered=False, in_doubt_per_fault=0, max_in_flight=most)
            for name, most in CALLBACKS.items()
        }
        return callbacks | {name: self._promise(name) for name in self.receivers}

    def _promise(self, name: str) -> Promise:
        plan = self.receivers[name]
        ordered = plan.entry.get("ordering") != "none"
        entry = {**QUICK, **plan.entry}
        in_flight = int(str(entry["max_in_flight"]))
        promise = Promise(plan.can_be_asked, ordered, in_flight, plan.deaths, plan.generations)
        promise = replace(promise, numbered=entry.get("ordering") == "receiver")
        if self._wired:  # delayed requests may arrive at any time
            return promise
        rate, window_s = entry.get("rate_limit"), float(str(entry.get("window_size", 1)))
        return replace(
            promise, max_in_flight=in_flight, rate_limit=None if rate is None else int(str(rate)), window_s=window_s
        )

    # life

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ledger = Ledger(self.directory / "harness.jsonl")
        self._outside_ledger = Follower(self.directory / "outside.jsonl")
        self.log = TopicReader(self.servers.bootstrap, self.topics)
        try:
            await self._start_outside()
            (self.directory / "receivers.yaml").write_text(json.dumps(self._receivers_file()))  # JSON is YAML
            await self.command("topics", "apply")
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def command(self, *arguments: str, within_s: float = 60.0) -> str:
        """Run a `relay` command to its end; its output. Raises RuntimeError when it fails."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "relay", *arguments),
            cwd=self.directory,
            env=self._environ(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), within_s)
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            raise RuntimeError(f"relay {' '.join(arguments)}: {output.decode(errors='replace')}")
        return output.decode(errors="replace")

    def member(
        self, name: str, roles: Sequence[str] = ROLES, only: Sequence[str] = (), *, lacks: bool = False
    ) -> Member:
        """Another member, not yet started. `only`: the receivers that it serves; none: all. `lacks`: it lacks the
        variable of some receivers."""
        environ = self._environ()
        if self.doors is not None:
            roles, environ = (*roles, API), environ | self.doors.environ()
        arguments = ["run", "--processes", "1", "--roles", ",".join(roles)]
        if only:
            arguments += ["--receivers-only", ",".join(only)]
        if lacks:
            del environ[OF_SOME]
        member = Member(name, tuple(arguments), self.directory, environ, self.fault)
        self.members[name] = member
        self._keepers.append(asyncio.create_task(member.keep()))
        return member

    async def start_members(self, count: int, *, lacking: int = 0) -> None:
        """Start `count` members with all roles, and wait until each has started. The first `lacking` of them lack a
        variable."""
        fresh = [self.member(f"relay-{number}", lacks=number <= lacking) for number in range(1, count + 1)]
        for member in fresh:
            await member.start()
        for member in fresh:
            await member.started()
        if self.doors is not None:
            await self.doors.make_keys()

    async def control(self, receiver: str, **knobs: object) -> None:
        """Change the behaviour of a receiver."""
        url = f"http://127.0.0.1:{self.port}/control/{receiver}"
        async with aiohttp.ClientSession() as session, session.put(url, json=knobs) as response:
            response.raise_for_status()

    async def flush_redis(self) -> None:
        """FLUSHALL at any moment."""
        client = redis.asyncio.Redis.from_url(self.servers.redis, socket_timeout=5)
        try:
            await client.flushall()
        finally:
            await client.aclose()

    # trials

    def fault(self, what: str, *, heals: bool = False) -> None:
        """Record an action or event in the history, at this time."""
        self._note(Fault(time.time(), what, heals))

    def load(self, plan: Plan) -> Load:
        """The messages of the next trial."""
        self._trials += 1
        label = f"t{self._trials}"
        bootstrap, topic = self.servers.bootstrap, self.topics.from_sender
        tenants = {name: one.tenant for name, one in self.receivers.items() if one.tenant is not None}
        return Load(bootstrap, topic, label, self._numbers, plan, self._seed, tenants, self.doors, self._told)

    async def quiesce(self, within_s: float = 120.0) -> bool:
        """End all faults and start all members; wait until each message is answered and no work is left. False if that
        takes too long: then `history` has the unfinished work.
        """
        await self.servers.heal()
        for member in self.members.values():
            member.thaw()
            if not member.running and not member.wanted:
                await member.start()
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if await self.look():
                break
            await asyncio.sleep(_LOOK_S)
        return await self._drained(min(deadline, time.monotonic() + within_s / 2))

    async def look(self) -> bool:
        """Whether every message is answered, as of now."""
        self.read()
        if self.unanswered():
            with contextlib.suppress(KafkaError, TimeoutError):
                await self.log.catch_up()
        return not self.unanswered()

    def unanswered(self) -> list[Sent]:
        """Messages that are acknowledged, and neither answered nor given up."""
        over = self._answered | {Key(died.source, died.message_id, died.receiver) for died in self.log.died}
        return [
            sent
            for sent in self.sent
            if sent.acked
            and Key(sent.source, sent.message_id, sent.receiver) not in over
            and Key(sent.source, sent.message_id, "") not in over
        ]

    async def until(self, seen: Callable[[], bool], within_s: float) -> bool:
        """Wait until `seen()`; False if that takes too long."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            self.read()
            if seen():
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    def left(self) -> str:
        """The unfinished work at the last check, in words."""
        open_ = [f"{each.message_id} for {each.receiver}" for each in self.unanswered()]
        parts = [f"{len(open_)} messages unanswered, as {', '.join(open_[:3])}"] if open_ else []
        parts += [f"{group} has {lag} records to go" for group, lag in sorted(self._lags.items())]
        parts += [f"{len(parked)} parked, as {parked[0]}"] if (parked := self.log.parked) else []
        return "; ".join(parts)

    def read(self) -> None:
        """Read new records of the ledger of `outside`."""
        for record in self._outside_ledger.more():
            self.told.append(record)
            if isinstance(record, Returned) and record.status is not None and record.status < 300:
                self._answered.add(Key(record.source, record.message_id, record.receiver))

    def history(self, of: Sequence[Sent] | None = None) -> History:
        """The history so far. `of`: of these messages only, with the faults since the first of them was sent."""
        records: Iterable[Record] = (*self.told, *self.log.died)
        if of is not None:
            ids = {each.message_id for each in of}  # each is used by one source only
            since = min((each.at for each in of), default=0.0)
            records = (each for each in records if _concerns(each, ids, since, poisoned=self.poisoned))
        return History.of(records, unfinished=self._lags, parked=len(self.log.parked))

    async def _drained(self, deadline: float) -> bool:
        """Wait until every group has committed all, and nothing is parked. A failpoint may freeze a process
        meanwhile."""
        while True:
            for member in self.members.values():
                if member.stopped_itself:
                    member.thaw()
            with contextlib.suppress(KafkaError, TimeoutError):
                self._lags = await self.log.lags(self.groups())
                await self.log.catch_up()
                self.read()
                if not self._lags and not self.log.parked and not self.unanswered():
                    return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)

    @property
    def python_path(self) -> str:
        """PYTHONPATH of the relay's processes."""
        return own_environ()["PYTHONPATH"]

    def groups(self) -> dict[str, str]:
        """Topic -> group, for all topics that the relay reads."""
        own = [name for name, plan in self.receivers.items() if plan.entry.get("lane") != "shared"]
        return self.topics.groups(own)

    def _told(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._note(sent)

    def _note(self, record: Record) -> None:
        self.told.append(record)
        self._ledger.write(record)

    # parts

    async def _start_outside(self) -> None:
        knobs = ("mode", "seconds", "rate", "status", "chance")
        spec = {name: {knob: getattr(plan, knob) for knob in knobs} for name, plan in self.receivers.items()}
        spec |= {name: {} for name in CALLBACKS}
        path = self.directory / "outside.json"
        path.write_text(json.dumps(spec))
        command = [sys.executable, "-m", OUTSIDE]
        command += ["--ledger", str(self.directory / "outside.jsonl"), "--receivers", str(path)]
        self._outside = Child("outside", command, self.directory, environ=own_environ(), piped=True)
        await self._outside.start()
        self.port = self._reached_at = int(json.loads(await self._outside.read_line())["port"])
        if self._wired:
            self.wire = Proxy("127.0.0.1", self.port)
            await self.wire.start()
            self._reached_at = self.wire.port

    def _receivers_file(self) -> dict[str, object]:
        quick = {key: value for key, value in QUICK.items() if key != "poll"}
        callbacks = [
            {"callback": quick | {"url": f"http://127.0.0.1:{self.port}/{name}", "max_in_flight": most}}
            for name, most in CALLBACKS.items()
        ]
        return {
            "sources": {
                "*": callbacks[0],
                **{f"source-{number}": callbacks[tenant_of(number)] for number in range(MOST_SOURCES)},
            },
            "receivers": {
                name: plan.entry_at(f"http://127.0.0.1:{self._reached_at}/r/{name}")
                for name, plan in self.receivers.items()
            },
        }

    def _environ(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        return {
            **clean,
            "PYTHONPATH": self.python_path,
            "PYTHONUNBUFFERED": "1",
            OF_SOME: SECRET,
            "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8",
            "RELAY_KAFKA_BOOTSTRAP_SERVERS": self.servers.kafka_for_relay,
            "RELAY_KAFKA_SESSION_TIMEOUT": f"{self._session_timeout_s:g}",
            "RELAY_LOG_FORMAT": "json",
            "XDG_DATA_HOME": os.devnull,  # no place for a history
            "RELAY_REDIS_URL": self.servers.redis_for_relay,
            "RELAY_TOPIC_PREFIX": self._prefix,
            **self._settings,
        }

    async def _stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        ends = await asyncio.gather(*self._keepers, return_exceptions=True)
        for member in self.members.values():
            member.thaw()
        await asyncio.gather(*(member.kill() for member in self.members.values()))
        outside = getattr(self, "_outside", None)
        if self.wire is not None:
            await self.wire.stop()
        if outside is not None:
            await outside.stop()
        for end in ends:
            if isinstance(end, Exception):
                raise end


def _concerns(record: Record, ids: set[str], since: float, *, poisoned: bool) -> bool:
    """Whether a record belongs to the messages with these ids. A dead letter without an id belongs to every trial."""
    if isinstance(record, Fault | Peak):
        return record.at >= since
    if isinstance(record, Asked):
        return record.asked_for in ids
    if isinstance(record, Ping):
        return False
    return record.message_id in ids or (isinstance(record, Died) and not record.message_id and not poisoned)
