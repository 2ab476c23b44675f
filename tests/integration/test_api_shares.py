"""Tests of the API's concurrent jobs, which callers share: no caller takes all, and administrators have a reserve."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from relay.config.limits import ApiLimits
from relay.domain.exchange import Response
from relay.history.port import HistoryPage, MessageFound, MessageQuery
from relay.replay.replay_service import MOST_OPEN
from tests.fakes.history import MemoryHistory
from tests.fakes.steps import CountingMeter
from tests.integration.api_rig import Reply, Rig, problem, running_api
from tests.integration.tail_rig import listening
from tests.integration.test_api_keys import SETTING, bearer

JSON: Final = {"Content-Type": "application/json"}


async def begin(rig: Rig, key: str) -> Reply:
    body = json.dumps({"receiver": "ci", "since": "1h"}).encode()
    return await rig.request("POST", "/v1/replays", body, JSON | bearer(key))


async def test_one_limited_key_does_not_take_all_jobs() -> None:
    async with running_api(api_key=SETTING) as rig:
        one, other = [await rig.keys.make("receiver:ci", now=rig.clock.time()) for _ in range(2)]
        made = 0
        while (reply := await begin(rig, one)).status == 202:
            made += 1
            assert made < MOST_OPEN, "all of them"
        found = problem(reply, 409, "too-many-jobs")
        assert "This caller" in found["detail"]
        assert int(reply.headers["Retry-After"]) > 0
        assert made == 22
        assert (await begin(rig, other)).status == 202
        many = [await rig.keys.make("receiver:ci", now=rig.clock.time()) for _ in range(200)]
        assert 409 in {(await begin(rig, key)).status for key in many}
        assert (await begin(rig, SETTING)).status == 202


async def test_one_limited_key_does_not_take_all_places_of_the_tail() -> None:
    async with running_api(api_key=SETTING, limits=ApiLimits(listeners=16)) as rig, AsyncExitStack() as stack:
        keys = [await rig.keys.make("receiver:ci", now=rig.clock.time()) for _ in range(30)]
        taken = 0
        for key in keys:
            while (await rig.request("HEAD", "/v1/tail", headers=bearer(key))).status == 200 and taken < 16:
                reply = await peek(rig, key)
                if reply != 200:
                    assert reply == 503
                    break
                await stack.enter_async_context(listening(rig, key=key))
                taken += 1
        assert taken == 14
        await stack.enter_async_context(listening(rig, key=SETTING))
        await stack.enter_async_context(listening(rig, key=await rig.keys.make("admin", now=0)))


async def peek(rig: Rig, key: str) -> int:
    """The status of one more live tail of this key. Its place is released at once."""
    async with rig.client.get(f"{rig.url}/v1/tail", headers=bearer(key)) as response:
        return response.status


async def test_the_keys_of_one_owner_have_one_share() -> None:
    async with running_api(api_key=SETTING, limits=ApiLimits(listeners=16)) as rig, AsyncExitStack() as stack:
        keys = [await rig.keys.make("owner:alice", now=rig.clock.time()) for _ in range(9)]
        statuses = []
        for key in keys:
            statuses.append(await peek(rig, key))
            if statuses[-1] == 200:
                await stack.enter_async_context(listening(rig, key=key))
        assert statuses == [200] * 4 + [503] * 5
        assert await peek(rig, await rig.keys.make("owner:bob", now=rig.clock.time())) == 200


class Slow(MemoryHistory):
    """Each search waits until it is let go; `under_way`: those of each id prefix that wait here."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.under_way: list[str] = []
        self.most = 0
        self.begun = asyncio.Condition()

    async def messages(
        self, query: MessageQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[MessageFound]:
        name = query.id_prefix or ""
        self.under_way.append(name)
        self.most = max(self.most, len(self.under_way))
        async with self.begun:
            self.begun.notify_all()
        await self.go.wait()
        self.under_way.remove(name)
        return await super().messages(query, limit=limit, cursor=cursor)

    async def reached(self, *names: str) -> None:
        async with self.begun, asyncio.timeout(10):
            await self.begun.wait_for(lambda: set(names) <= set(self.under_way))


async def test_searches_of_one_key_let_those_of_another_begin_at_once() -> None:
    history, meter = Slow(), CountingMeter()
    async with running_api(api_key=SETTING, history=history, meter=meter) as rig, asyncio.TaskGroup() as group:
        one, other = [await rig.keys.make("read:*", now=rig.clock.time()) for _ in range(2)]

        def search(name: str, key: str) -> asyncio.Task[Reply]:
            return group.create_task(rig.request("GET", f"/v1/messages?id={name}", headers=bearer(key)))

        many = [search("one", one) for _ in range(15)]
        await history.reached("one")
        asked = [search("other", other), search("admin", SETTING)]
        await history.reached("other", "admin")
        assert history.under_way.count("one") <= 2
        history.go.set()
        assert {(await each).status for each in (*many, *asked)} == {200}
    assert history.most <= 8
    assert ("queued", "search") in {told[:2] for told in meter.told}


async def test_a_key_has_so_many_searches_that_wait_and_no_more() -> None:
    history = Slow()
    async with running_api(api_key=SETTING, history=history) as rig, asyncio.TaskGroup() as group:
        one = await rig.keys.make("read:*", now=rig.clock.time())

        def search() -> asyncio.Task[Reply]:
            return group.create_task(rig.request("GET", "/v1/messages?id=one", headers=bearer(one)))

        many = [search() for _ in range(30)]
        refused, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        found = problem(next(iter(refused)).result(), 429, "too-many-requests")
        assert "This caller" in found["detail"]
        assert int(next(iter(refused)).result().headers["Retry-After"]) > 0
        history.go.set()
        statuses = [(await each).status for each in many]
        assert statuses.count(200) == 18
        assert statuses.count(429) == 12


async def test_a_key_that_is_revoked_while_its_searches_wait_finds_nothing() -> None:
    history = Slow()
    async with running_api(api_key=SETTING, history=history) as rig, asyncio.TaskGroup() as group:
        one = await rig.keys.make("read:*", now=rig.clock.time())
        many = [group.create_task(rig.request("GET", "/v1/messages", headers=bearer(one))) for _ in range(19)]
        await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)  # one is refused, as 16 others wait
        await rig.keys.revoke(rig.keys.keys.all()[0])
        history.go.set()
        statuses = [(await each).status for each in many]
        assert [statuses.count(status) for status in (200, 401, 429)] == [2, 16, 1]


async def test_one_limited_key_does_not_take_all_tests() -> None:
    async with running_api(api_key=SETTING) as rig, asyncio.TaskGroup() as group:
        names = [f"ci-{number}" for number in range(10)]
        rig.directory.receivers |= {name: replace(rig.directory.receivers["ci"], name=name) for name in names}
        one = await rig.keys.make(*(f"receiver:{name}" for name in names), now=rig.clock.time())
        rig.transport.reply = None

        def test(name: str, key: str) -> asyncio.Task[Reply]:
            return group.create_task(rig.request("POST", f"/v1/receivers/{name}/test", headers=bearer(key)))

        many = [test(name, one) for name in names]
        await rig.transport.asked.wait()
        asked = test("cd", SETTING)
        async with asyncio.timeout(10):
            while not any(b'"cd"' in request.body for request in rig.transport.requests):
                rig.transport.asked.clear()
                await rig.transport.asked.wait()
        assert len(rig.transport.requests) <= 3
        rig.transport.reply = Response(204, {}, b"")
        for done in list(rig.transport.waiting):
            done(rig.transport.reply)
        assert {(await each).status for each in (*many, asked)} <= {200, 429}
        assert (await asked).status == 200


async def test_the_browsers_of_one_owner_do_not_take_all_live_pages() -> None:
    meter = CountingMeter()
    async with running_api(pages=True, api_key=SETTING, meter=meter) as rig, AsyncExitStack() as stack:
        keys = [await rig.keys.make("owner:alice", now=rig.clock.time()) for _ in range(3)]

        async def live(key: str) -> int:
            """Open a live page in a separate browser."""
            reply = await rig.request("POST", "/v1/sessions", b"{}", JSON | bearer(key))
            cookie = {"Cookie": f"relay_session={json.loads(reply.body)['token']}"}
            stream = await stack.enter_async_context(rig.client.get(f"{rig.url}/ui/live/messages", headers=cookie))
            if stream.status == 200:
                await stream.content.readuntil(b"\n\n")
            return stream.status

        statuses = [await live(keys[n % 3]) for n in range(20)]
        assert statuses == [200] * 14 + [503] * 6
        assert await live(await rig.keys.make("owner:bob", now=rig.clock.time())) == 200
        assert await live(SETTING) == 200
        assert meter.told.count(("over_share", "page")) == 6
