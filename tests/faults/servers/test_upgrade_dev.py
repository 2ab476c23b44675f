"""What `relay dev` of the last release has left in its data directory, with messages in every state, this release
finishes; and the last one finds its way in what this one has left."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from relay.sink import Sink
from tests.browser.dev_relay import DevRelay
from tests.servers.asking import until
from tests.servers.release import Release
from tests.servers.release import last_release as last_release

KEY = "a-key-of-the-settings"
SECRET = "whsec_Y2lyY2xlY2ktY2lyY2xlY2ktY2lyY2xlY2kh"
OVER = "response_delivered_to_sender"
BROKEN = {"retry_after": 3, "breaker": {"failures": 10_000}}
SETTINGS = {"RELAY_HOLD_MAX": "1s", "RELAY_API_KEY": KEY}


@asynccontextmanager
async def sinks(**made: Sink) -> AsyncIterator[dict[str, Sink]]:
    async with AsyncExitStack() as stack:
        for sink in made.values():
            await sink.start()
            stack.push_async_callback(sink.stop)
        yield made


def dev(directory: Path, more: dict[str, str]) -> DevRelay:
    return DevRelay(directory, SETTINGS | more, key=KEY, data=directory / "data")


async def parked(relay: DevRelay, *receivers: str) -> None:
    """Wait until each of them has something parked."""

    async def are() -> bool:
        found = [await relay.call("GET", f"/v1/receivers/{name}") for name in receivers]
        return all(sum(each["parked"].values()) > 0 for each in found)

    await until(are)


async def told(relay: DevRelay, ids: Sequence[str]) -> None:
    """Wait until the history says of each that it is over."""

    async def are() -> bool:
        items = (await relay.call("GET", f"/v1/messages?since=1h&status={OVER}&limit=100"))["items"]
        return {each["message_id"] for each in items} >= set(ids)

    await until(are)


async def who(relay: DevRelay, token: str) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{relay.url}/v1/session") as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_messages_in_flight_are_finished_by_this_release_and_the_last_one_can_have_it_back(
    last_release: Release, tmp_path: Path
) -> None:
    async with sinks(
        signed=Sink("answer", secret=SECRET),
        patient=Sink("later", later_polls=1),
        down=Sink("fail", fail_status=501),
        byhand=Sink("later"),
        callback=Sink("answer"),
        refusing=Sink("fail", fail_status=500),
    ) as at:
        sources = {f"to-{name}": name for name in ("signed", "patient", "down", "byhand")} | {"refused": "signed"}
        async with dev(tmp_path, last_release.environ) as old:
            await old.source("shop", callback={"url": at["callback"].url})
            await old.source("strict", callback={"url": at["refusing"].url, **BROKEN})
            await old.receiver("signed", at["signed"].url, secret=SECRET)
            status = at["patient"].status_url_template
            await old.receiver("patient", at["patient"].url, status_endpoint=status, poll={"base": 3})
            await old.receiver("down", at["down"].url, **BROKEN)
            await old.receiver("byhand", at["byhand"].url, answer_deadline="1h")
            for message_id, receiver in sources.items():
                await old.send("strict" if message_id == "refused" else "shop", message_id, to=receiver)
            await old.send("shop", "behind", to="down")
            await old.until_status("shop", "to-signed", OVER)
            await parked(old, "down", "patient")
            await at["byhand"].wait_for(1)
            await at["refusing"].wait_for(1)
            key = (await old.call("POST", "/v1/keys", {"name": "k", "scopes": ["admin"]}))["key"]
            token = (await old.call("POST", "/v1/sessions", {"key": key}))["token"]
            await told(old, ["to-signed"])

        async with dev(tmp_path, {}) as new:
            at["down"].become("answer")
            at["refusing"].become("answer")
            assert (await who(new, token))["who"] == "session of " + (await who(new, key))["who"]
            answer_url = URL(at["byhand"].received[0].headers["relay-answer-url"])
            await new.call("POST", answer_url.path, {"by": "hand"})
            for message_id in (*sources, "behind"):
                await new.until_status("strict" if message_id == "refused" else "shop", message_id, OVER)
            await new.send("shop", "sent-by-new", to="signed")
            await new.until_status("shop", "sent-by-new", OVER)
            await told(new, [*sources, "behind", "sent-by-new"])
            at["down"].become("fail", fail_status=501)
            await new.send("shop", "left-by-new", to="down")
            await parked(new, "down")

        async with dev(tmp_path, last_release.environ) as back:
            at["down"].become("answer")
            await back.until_status("shop", "left-by-new", OVER)
            assert (await who(back, token))["proof"] == "session"
            await told(back, [*sources, "behind", "sent-by-new", "left-by-new"])

        done = [each.message_id for sink in at.values() for each in sink.received if each.met in ("answer", "later")]
        to_receivers = sorted(each for each in done if each)
        assert to_receivers == sorted([*sources, "behind", "sent-by-new", "left-by-new"])
        ours = [each.message_id for each in at["down"].received if each.met == "answer"]
        assert ours == ["to-down", "behind", "left-by-new"]
        assert all(each.verified for each in at["signed"].received)
