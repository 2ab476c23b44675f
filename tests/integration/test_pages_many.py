"""Tests of pages about 10,000 receivers and dead letters: the size of a page, and how much it reads."""

from collections.abc import Callable
from typing import Any

import pytest

from relay.control.records import EntryRecord
from relay.log.port import NewRecord
from tests.integration.api_rig import Rig, running_api
from tests.integration.test_api_failed import add_dead_letter
from tests.servers.asking import until

MOST_BYTES = 30_000
MANY = 10_000


def counting(monkeypatch: pytest.MonkeyPatch, part: object, name: str, size: Callable[[Any], int]) -> list[int]:
    """A list that gets the `size` of the result of each call of a method from now on."""
    sizes, method = list[int](), getattr(part, name)

    async def counted(*arguments: Any, **named: Any) -> Any:
        found = await method(*arguments, **named)
        sizes.append(size(found))
        return found

    monkeypatch.setattr(part, name, counted)
    return sizes


async def wire(rig: Rig, target: str) -> tuple[int, str]:
    """The bytes of a page over the wire, and its text."""
    async with rig.client.get(rig.url + target, headers={"Accept-Encoding": "gzip"}) as response:
        assert response.status == 200
        assert response.headers["Content-Encoding"] == "gzip"
        return int(response.headers["Content-Length"]), await response.text()


async def test_of_10_000_dead_letters_a_page_reads_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(pages=True) as rig:
        for name in ("ci", "cd"):
            await add_dead_letter(rig, name, range(MANY // 2))
        read = counting(monkeypatch, rig.log, "read", len)
        calls = counting(monkeypatch, rig.state, "failed", len)
        size, text = await wire(rig, "/ui/failed")
        assert size < MOST_BYTES
        assert text.count('<p class="tally">5,000</p>') == 2  # all of them are counted
        assert sum(read) <= 10
        await wire(rig, "/ui/failed")
        assert len(calls) <= 8  # the next page within a second counts nothing again
        size, text = await wire(rig, "/ui/failed?receiver=ci&reason=rejected")
        assert size < MOST_BYTES
        assert "Next page" in text
        read.clear()
        await wire(rig, "/ui/sources/github")
        assert sum(read) == 0  # none of them is about a result


async def test_of_10_000_receivers_a_page_reads_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(pages=True) as rig:
        names = [f"{n:05}-{'n' * 57}" for n in range(MANY)]
        await rig.log.append([_declared(rig, name) for name in names])
        cookie = await session(rig)

        async def is_known() -> bool:
            async with rig.client.get(f"{rig.url}/ui/receivers?prefix={names[-1]}", headers=cookie) as response:
                return '<tr><th scope="row">' in await response.text()

        await until(is_known)
        calls = counting(monkeypatch, rig.state, "endpoints", len)
        async with rig.client.get(f"{rig.url}/ui/receivers", headers=cookie) as response:
            text, size = await response.text(), int(response.headers["Content-Length"])
        assert text.count('<tr><th scope="row">') == 50
        assert size < MOST_BYTES
        assert len(calls) <= 2
        assert sum(calls) <= 100


async def session(rig: Rig) -> dict[str, str]:
    key = await rig.keys.make("admin", now=rig.clock.time())
    made = await rig.request("POST", "/v1/sessions", b"", {"Authorization": f"Bearer {key}"})
    token = made.text.partition('"token":"')[2].partition('"')[0]
    return {"Cookie": f"relay_session={token}", "Accept-Encoding": "gzip"}


def _declared(rig: Rig, name: str) -> NewRecord:
    entry: dict[str, object] = {
        "post_endpoint": f"https://{name[:5]}.example/hooks",
        "lane": "dedicated",
        "owner": f"owner-{name[:5]}",
    }
    return NewRecord(rig.topics.receiver_config, name.encode(), EntryRecord("api", entry).encode())
