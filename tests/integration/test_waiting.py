"""Tests of the reasons why a message waits, as a running relay reports them: each appears and ends with its cause."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession, web

from relay.cli import status
from relay.schema.messages import MessageView
from relay.sink import Sink
from tests.integration.production import Rig, Sent
from tests.integration.test_demo import relay
from tests.servers.http import serving, started
from tests.servers.process import RelayProcess, relay_dev

SOURCE = "github"
LOOK_S = 0.1
SEEN_WITHIN_S = 120.0


@dataclass
class Watcher:
    """A client of a running relay's API."""

    session: ClientSession

    async def send(self, receiver: str, message_id: str) -> None:
        path = f"/v1/sources/{SOURCE}/messages"
        headers = {"ce-id": message_id, "content-type": "application/json"}
        async with self.session.post(path, params={"receiver": receiver}, data=b"{}", headers=headers) as response:
            assert response.status == 202, await response.text()

    async def control(self, receiver: str, action: str) -> None:
        async with self.session.post(f"/v1/receivers/{receiver}/{action}") as response:
            assert response.status == 200, await response.text()

    async def until(self, message_id: str, seen: Callable[[Any], bool], source: str = SOURCE) -> Any:
        """The message's state once `seen` accepts it. It polls, because there is no event to wait for."""
        state: Any = None
        try:
            async with asyncio.timeout(SEEN_WITHIN_S):
                while True:
                    async with self.session.get(f"/v1/sources/{source}/messages/{message_id}") as response:
                        state = await response.json()
                    if response.status == 200 and seen(state):
                        return state
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"never seen; the last was {state}") from None

    async def attention(self, kind: str) -> tuple[Any, Any]:
        """The first alert of that kind, once there is one; and a lane of deliveries."""

        def found(overview: Any) -> list[Any]:
            return [item for item in overview["attention"] if item["kind"] == kind]

        async with asyncio.timeout(SEEN_WITHIN_S):
            while True:
                async with self.session.get("/v1/overview") as response:
                    items = found(await response.json())
                if items:
                    break
                await asyncio.sleep(LOOK_S)
        async with self.session.get("/v1/lanes?role=to-receiver&served=true") as response:
            return items[0], (await response.json())["items"][0]

    async def waits_for(self, message_id: str, kind: str, source: str = SOURCE) -> Any:
        """The delivery, once it waits for this reason."""

        def seen(state: Any) -> bool:
            [delivery] = state["deliveries"]
            return delivery["waiting_for"] is not None and delivery["waiting_for"]["kind"] == kind

        return (await self.until(message_id, seen, source))["deliveries"][0]

    async def ended(self, message_id: str, source: str = SOURCE) -> Any:
        """The delivery, once the message is in its final state; then it waits for nothing."""
        [delivery] = (await self.until(message_id, is_over, source))["deliveries"]
        assert delivery["waiting_for"] is None
        assert delivery["next_attempt_at"] is None
        return delivery


@dataclass
class Place:
    """The directory of a relay, its receiver, its callback and its settings."""

    directory: Path
    receiver: Sink
    callback: Sink
    environ: dict[str, str] = field(default_factory=dict)

    def declare(
        self, *, calls_back: bool = False, callback: Mapping[str, object] | None = None, **receiver: object
    ) -> None:
        """Write the receivers file: one receiver `ci`."""
        entry = {"post_endpoint": self.receiver.url, **({"retry_after": 1} | receiver)}
        declared: dict[str, object] = {"receivers": {"ci": entry}}
        if callback is not None:
            declared["sources"] = {SOURCE: {"callback": {"url": self.callback.url, **callback}}}
        (self.directory / "receivers.yaml").write_text(json.dumps(declared))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[RelayProcess, Watcher]]:
        async with (
            relay_dev(self.directory, "--no-demo", environ=self.environ) as dev,
            ClientSession(dev.value_of("API")) as session,
        ):
            yield dev, Watcher(session)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    sinks = Sink("answer"), Sink("answer")
    async with started(*sinks):
        yield Place(tmp_path, *sinks)


async def test_retry(place: Place) -> None:
    place.receiver.become("fail", fail_status=404, fail_first=1)
    place.declare(retry_after=3)
    async with place.running() as (_, watcher):
        await watcher.send("ci", "m-1")
        delivery = await watcher.waits_for("m-1", "retry")
        assert delivery["waiting_for"]["since"] < delivery["waiting_for"]["until"] == delivery["next_attempt_at"]
        assert (delivery["reason"], delivery["last_status"]) == ("client_error", 404)
        assert f"POST {place.receiver.url}: 404" in delivery["detail"]
        assert delivery["detail"] in delivery["waiting_for"]["detail"]
        assert (await watcher.ended("m-1"))["attempts"] == 2


async def test_rate(place: Place) -> None:
    place.declare(rate_limit=1, window_size=4)
    async with place.running() as (_, watcher):
        await watcher.send("ci", "m-1")
        await watcher.send("ci", "m-2")
        delivery = await watcher.waits_for("m-2", "rate")
        assert delivery["waiting_for"]["until"] == delivery["next_attempt_at"] is not None
        assert "1 in 4 s" in delivery["waiting_for"]["detail"]
        await watcher.ended("m-2")


async def test_paused(place: Place) -> None:
    place.declare()
    async with place.running() as (running, watcher):
        await watcher.control("ci", "pause")
        await watcher.send("ci", "m-1")
        delivery = await watcher.waits_for("m-1", "paused")
        send = ("send", "--source", SOURCE, "--receiver", "ci", "--id", "m-2", "--wait", "2", "-")
        code, output = await relay(running, *send, stdin=b"{}")
        assert code == 1
        assert "its state is blocked; ci waits: paused" in output
        assert delivery["waiting_for"]["since"] is not None
        assert delivery["waiting_for"]["until"] is None
        await watcher.control("ci", "resume")
        await watcher.ended("m-1")


async def test_breaker(place: Place) -> None:
    place.receiver.become("fail", fail_status=500)
    place.declare(breaker={"failures": 2, "open_for": 4})
    async with place.running() as (_, watcher):
        await watcher.send("ci", "m-1")
        delivery = await watcher.waits_for("m-1", "breaker")
        assert "failed 2 times in a row" in delivery["waiting_for"]["detail"]
        assert delivery["waiting_for"]["until"] is not None
        place.receiver.become("answer")
        await watcher.ended("m-1")


async def test_offline(place: Place) -> None:
    place.receiver.become("fail", fail_status=500)
    place.declare(breaker={"failures": 1, "open_for": "500ms"}, offline={"after": "1s", "ping_every": "1s"})
    async with place.running() as (_, watcher):
        await watcher.send("ci", "m-1")
        delivery = await watcher.waits_for("m-1", "offline")
        assert "down for" in delivery["waiting_for"]["detail"]
        place.receiver.become("answer")
        await watcher.ended("m-1")


@pytest.mark.parametrize("hold_max", ["60", "500ms"])
async def test_order(place: Place, hold_max: str) -> None:
    """Behind a head in the lane's memory, and behind one that is parked."""
    place.environ["RELAY_HOLD_MAX"] = hold_max
    place.receiver.become("fail", fail_status=404)
    place.declare(retry_after=1, breaker={"failures": 1_000})
    async with place.running() as (_, watcher):
        await watcher.send("ci", "m-1")
        await watcher.waits_for("m-1", "retry")
        await watcher.send("ci", "m-2")
        delivery = await watcher.waits_for("m-2", "order")
        assert "'m-1'" in delivery["waiting_for"]["detail"]
        assert (delivery["status"], delivery["attempts"]) == ("arrived", 0)
        place.receiver.become("answer")
        await watcher.ended("m-1")
        await watcher.ended("m-2")
    *before, last = [arrival.message_id for arrival in place.receiver.received]
    assert (set(before), last) == ({"m-1"}, "m-2")


@pytest.mark.parametrize("hold_max", ["60", "500ms"])
async def test_the_overview_names_what_holds_others_up(place: Place, hold_max: str) -> None:
    """In the lane's memory, and parked."""
    place.environ["RELAY_HOLD_MAX"] = hold_max
    place.receiver.become("fail", fail_status=404)
    place.declare(retry_after=1, breaker={"failures": 1_000})
    async with place.running() as (_, watcher):
        for message_id in ("m-1", "m-2", "m-3"):
            await watcher.send("ci", message_id)
        item, lane = await watcher.attention("held_up")
        assert (item["subject"], item["message"]) == ("ci", {"source_id": SOURCE, "message_id": "m-1"})
        assert item["detail"].startswith("2 messages wait behind 'm-1' of source 'github': attempt ")
        assert "404" in item["detail"]
        assert lane["process"]
        async with watcher.session.request(item["action"]["method"], item["action"]["path"]) as response:
            assert response.status < 300, await response.text()
        place.receiver.become("answer")
        await watcher.ended("m-3")


async def test_settling_and_in_doubt(place: Place) -> None:
    """A POST whose response is lost, at a receiver that can be asked but does not answer for a while."""
    answers = [500]

    async def status(_: web.Request) -> web.Response:
        return web.Response(status=answers[-1])

    async with serving(status) as url:
        place.receiver.become("reset", fail_first=1)
        endpoint = f"{url}/status/{{message_id}}"
        place.declare(status_endpoint=endpoint, timeout=1, poll={"base": "500ms", "cap": 1})
        async with place.running() as (_, watcher):
            await watcher.send("ci", "m-1")
            delivery = await watcher.waits_for("m-1", "settling")
            assert "attempt 1" in delivery["waiting_for"]["detail"]
            assert delivery["waiting_for"]["until"] is not None
            await watcher.waits_for("m-1", "in_doubt")
            answers.append(404)
            assert (await watcher.ended("m-1"))["attempts"] == 2


async def test_answer(place: Place) -> None:
    place.receiver.become("later", later_polls=0, answer_after_s=8)
    place.declare(status_endpoint=place.receiver.status_url_template, poll={"base": "500ms", "cap": 1})
    async with place.running() as (_, watcher):
        await watcher.send("ci", "m-1")
        await watcher.until("m-1", lambda state: state["status"] == "delivered_to_receiver")
        waiting = (await watcher.waits_for("m-1", "answer"))["waiting_for"]
        assert waiting["since"] < waiting["until"]
        await watcher.control("ci", "pause")
        await watcher.waits_for("m-1", "paused")  # it is not asked while the receiver is paused
        await watcher.control("ci", "resume")
        await watcher.ended("m-1")


async def test_callback(place: Place) -> None:
    place.callback.become("fail", fail_status=503)
    place.declare(callback={"retry_after": 1})
    async with place.running() as (_, watcher):
        await watcher.send("ci", "m-1")
        delivery = await watcher.waits_for("m-1", "callback")
        retried = await watcher.until("m-1", lambda state: state["deliveries"][0]["callback"]["attempts"] > 0)
        assert delivery["status"] == "response_received_from_receiver"
        callback = retried["deliveries"][0]["callback"]
        assert callback["last_status"] == 503
        assert f"POST {place.callback.url}: 503" in callback["detail"]
        place.callback.become("answer")
        assert (await watcher.ended("m-1"))["callback"]["status"] == "delivered"


async def test_a_callback_that_was_given_up_is_a_failure(place: Place) -> None:
    place.callback.become("reject")
    place.declare(callback={})
    async with place.running() as (dev, watcher):
        sent = ("send", "--source", SOURCE, "--receiver", "ci", "--id", "m-1", "--wait", "30", "-")
        code, output = await relay(dev, *sent, stdin=b"{}")
        assert code == 1, output
        callback = (await watcher.ended("m-1"))["callback"]
        assert (callback["status"], callback["attempts"], callback["last_status"]) == ("failed", 1, 422)
        assert f"POST {place.callback.url}: 422" in callback["detail"]
        for watch in ((), ("--watch",)):
            code, output = await relay(dev, "status", SOURCE, "m-1", *watch)
            assert code == 1
            assert "failed, 1 call, last 422" in output
            assert callback["detail"] in " ".join(output.split())  # in lines of 80 columns


def is_over(view: dict[str, Any]) -> bool:
    """Whether a message as the API shows it is in its final state."""
    return status.is_over(msgspec.convert(view, MessageView))


async def test_switched_off(place: Place) -> None:
    place.declare(enabled=False)
    async with place.running() as (dev, watcher):
        await watcher.send("ci", "m-1")
        await watcher.waits_for("m-1", "switched_off")
        _, output = await relay(dev, "receivers", "health", "ci")
        assert output.startswith("ci: switched off; ")
        place.declare(enabled=True)
        await watcher.ended("m-1")


async def test_watching_shows_each_change_until_it_is_over(place: Place) -> None:
    place.receiver.become("fail", fail_status=404, fail_first=1)
    place.declare(retry_after=3)
    async with place.running() as (dev, watcher):
        await watcher.send("ci", "m-1")
        await watcher.waits_for("m-1", "retry")
        code, output = await relay(dev, "status", SOURCE, "m-1", "--watch", "-o", "json")
    assert code == 0
    states = [json.loads(line) for line in output.splitlines()]
    assert states[0]["deliveries"][0]["waiting_for"]["kind"] == "retry"
    assert is_over(states[-1])
    assert len(states) < 10  # a line for each change, not for each look


@pytest.mark.kafka
async def test_no_worker(rig: Rig) -> None:
    sent = Sent(1, "source-1", "circleci", b"{}")
    others = "api,from-sender,from-receiver-async,to-sender,failed-messages"
    async with rig.relay("run", "--processes", "1", "--roles", others) as running:
        api = json.loads(await running.line_with('"started"'))["api"]
        await rig.produce([sent])
        async with ClientSession(api) as session:
            watcher = Watcher(session)
            delivery = await watcher.waits_for(sent.message_id, "no_worker", sent.source)
            assert "to_receiver_circleci/0" in delivery["waiting_for"]["detail"]
            async with rig.relay("worker", "to-receiver", "--receiver", "circleci"):
                await watcher.ended(sent.message_id, sent.source)
            await rig.produce([Sent(2, "source-1", "circleci", b"{}")])
            delivery = await watcher.waits_for("source-1-2", "no_worker", sent.source)
            assert delivery["waiting_for"]["since"] is not None
