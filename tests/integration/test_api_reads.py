"""Tests that a request reads and returns a bounded number of bytes, however large the records of others are."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import pytest
from aiohttp import StreamReader
from msgspec import structs

from relay.api import failed, status
from relay.api.history import query
from relay.domain.attempt import Attempt, AttemptResponse
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_digest, message_headers
from relay.history.port import AttemptFound, AttemptQuery, HistoryPage
from relay.log.port import AT_ONCE, Coordinate, NewRecord, Record
from relay.state.replies import answered
from relay.state.rows import Arrival, Mark, MessageStage, Stage, delivery_row
from tests.contract.history_facts import arrival, attempt, put
from tests.fakes.history import MemoryHistory
from tests.integration.api_rig import Rig, document, pages, problem, running_api
from tests.integration.test_api_failed import add_dead_letter

LARGE: Final = 500_000
BOUND: Final = 200_000


class Held(bytes):
    """A value that counts the bytes of its kind which are in memory."""

    now, most = 0, 0

    def __new__(cls, value: bytes) -> "Held":
        made = super().__new__(cls, value)
        cls.now += len(made)
        cls.most = max(cls.most, cls.now)
        return made

    def __del__(self) -> None:
        Held.now -= len(self)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each record that is read from the log of a rig, as it is read."""
    Held.now = Held.most = 0
    return []


def counting(rig: Rig, read: list[int], size: int = LARGE) -> None:
    """From now on values read from the rig's log have so many bytes, and are counted."""
    plain, payload = rig.log.read, b" " * (size - 2)

    async def counted(wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        found = await plain(wanted)
        read.extend(size for record in found if record is not None)
        return [each and structs.replace(each, value=Held(b"{" + payload + b"}")) for each in found]

    rig.log.read = counted  # type: ignore[method-assign]


async def test_a_list_of_large_dead_letters_holds_a_few_of_them_and_ends_early(read: list[int]) -> None:
    async with running_api() as rig:
        await add_dead_letter(rig, "ci", range(240))
        counting(rig, read)
        seen: list[str] = []
        async for page in pages(rig.get, "/v1/failed?limit=1000"):
            assert sum(read) <= failed.MOST_BYTES + AT_ONCE * LARGE
            read.clear()
            seen += [letter["message_id"] for letter in page["items"]]
    assert seen == [f"ci-{number}" for number in reversed(range(240))]
    assert Held.most <= AT_ONCE * LARGE


async def test_a_page_of_dead_letters_reads_hardly_more_than_it_shows(read: list[int]) -> None:
    async with running_api() as rig:
        await add_dead_letter(rig, "ci", range(240))
        counting(rig, read)
        page: Any = document(await rig.get("/v1/failed?limit=5"))
    assert len(page["items"]) == 5
    assert len(read) <= 5 + AT_ONCE


async def reads_a_bounded_page(read: list[int], seed: int) -> None:
    """Letters of a drawn number and size, listed with drawn limits."""
    draw = Random(seed)
    count, size, limit = draw.randint(1, 150), draw.choice((100, 5_000, 20_000)), draw.choice((1, 7, 60, 1_000))
    async with running_api() as rig:
        await add_dead_letter(rig, "ci", range(count))
        counting(rig, read, size)
        seen = list[str]()
        async for page in pages(rig.get, f"/v1/failed?limit={limit}"):
            assert sum(read) <= BOUND + AT_ONCE * size, f"seed {seed}: too much is read for a page"
            read.clear()
            seen += [letter["message_id"] for letter in page["items"]]
        assert Held.most <= AT_ONCE * size, f"seed {seed}: too much is held"
    assert seen == [f"ci-{number}" for number in reversed(range(count))]
    Held.most = Held.now


async def drawn_pages(read: list[int]) -> None:
    for seed in range(8):
        await reads_a_bounded_page(read, seed)


async def test_letters_of_any_number_and_size_are_read_in_bounded_pages(
    read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed, "MOST_BYTES", BOUND)
    await drawn_pages(read)


@pytest.mark.parametrize(("name", "planted"), [("MOST_BYTES", 10**9), ("AT_ONCE", 10_000)])
async def test_a_page_without_a_bound_is_found(
    read: list[int], monkeypatch: pytest.MonkeyPatch, name: str, planted: int
) -> None:
    monkeypatch.setattr(failed, "MOST_BYTES", BOUND)
    monkeypatch.setattr(failed, name, planted)
    with pytest.raises(AssertionError, match="too much is"):
        await drawn_pages(read)


async def test_of_many_large_answers_a_message_has_the_beginnings(
    read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MOST_ANSWERS", 2_000_000)
    names = [f"r-{number}" for number in range(100)]
    async with running_api() as rig:
        message = Message("github", "m-1", tuple(names), "push", None, None, b"{}")
        (at,) = await rig.log.append([NewRecord(rig.topics.from_sender, b"github", b"{}", message_headers(message))])
        row = Arrival(message.id, message_digest(message), at.partition, at.offset, MessageStage.ENQUEUED)
        await answered(rig.state.arrive([row]))
        for name in names:
            delivery = DeliveryId(name, "github", "m-1")
            answer = NewRecord(rig.topics.to_sender, b"github", b"{}", encode_hop(Hop(delivery, answer_status=200)))
            (at,) = await rig.log.append([answer])
            await rig.state.mark([Mark(delivery_row(delivery), 0, Stage.PUBLISHED, (at.partition, at.offset))])
        counting(rig, read)
        path = "/v1/sources/github/messages/m-1"
        reply = await rig.get(path)
        found: Any = document(reply)
        one: Any = document(await rig.get(f"{path}?receiver=r-99"))
        problem(await rig.get(f"{path}?receiver=r-100"), 404, "not-found")
    cut = [each["answer"].get("truncated", False) for each in found["deliveries"]]
    assert cut == [False] * 4 + [True] * 96
    assert len(reply.body) < 2_000_000 + 100 * 4_096
    assert Held.most <= 2_000_000 + (AT_ONCE + 1) * LARGE  # and the message itself
    [whole] = one["deliveries"]
    assert (whole["receiver"], len(whole["answer"]["body"]), "truncated" in whole["answer"]) == ("r-99", LARGE, False)


# --- attempts -------------------------------------------------------------------------------------------------------

HEAVY: Final = {f"x-header-{number}": "v" * 1_024 for number in range(64)}


def heavy(number: int, **more: Any) -> tuple[Coordinate, Attempt]:
    """An attempt with as many headers, each as long, as is ever kept."""
    at, plain = attempt("m-1", source="github", offset=number, at=number, attempt=number + 1, **more)
    return at, structs.replace(plain, headers=HEAVY, response=AttemptResponse(500, HEAVY, "b" * 1_024, truncated=True))


class Asked(MemoryHistory):
    """Remembers for how many attempts it was asked at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    async def attempts(
        self, query: AttemptQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[AttemptFound]:
        self.limits.append(limit)
        return await super().attempts(query, limit=limit, cursor=cursor)


async def test_a_list_of_attempts_is_small_and_each_can_be_had_whole() -> None:
    history = Asked()
    await put(history, arrival(1, source="github"), *map(heavy, range(60)))
    async with running_api(history=history) as rig:
        reply = await rig.get("/v1/sources/github/messages/m-1/attempts?limit=60")
        items: Any = document(reply)["items"]
        assert [item["cut"] for item in items] == [True] * 60
        assert len(reply.body) < 60 * 8_192
        whole: Any = document(await rig.get(f"/v1/attempts/{items[0]['partition']}/{items[0]['offset']}"))
        assert (whole["request"]["headers"], whole["response"]["headers"], whole["cut"]) == (HEAVY, HEAVY, False)


async def test_a_page_of_attempts_ends_before_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MOST_BYTES", 100_000)
    history = Asked()
    await put(history, arrival(1, source="github"), *map(heavy, range(150)))
    async with running_api(history=history) as rig:
        seen = list[int]()
        async for page in pages(rig.get, "/v1/sources/github/messages/m-1/attempts?limit=1000"):
            assert len(json.dumps(page)) < 100_000 + query.AT_ONCE * 8_192
            seen += [item["offset"] for item in page["items"]]
    assert seen == list(reversed(range(150)))
    assert max(history.limits) == query.AT_ONCE


async def test_a_page_about_a_message_asks_for_its_attempts_again_only_when_there_is_one_more() -> None:
    history = Asked()
    await put(history, arrival(1, source="github", receivers=("ci",)), *map(heavy, range(60)))
    async with running_api(history=history, pages=True) as rig:
        page = await rig.get("/ui/messages/github/m-1")
        assert page.status == 200
        assert len(page.body) < 2_000_000
        assert "see the whole exchange" in page.text
        assert (await rig.get("/ui/attempts/0/59")).text.count("x-header-63") == 2
        url = f"{rig.url}/ui/live/messages/github/m-1"
        history.limits.clear()
        async with rig.client.get(url) as stream:
            first = await event(stream.content)
            assert history.limits == [50, 50]  # one look, in two slices
            await put(history, heavy(60))
            second = await event(stream.content)
        assert ("Attempt 61" in first, "Attempt 61" in second) == (False, True)
        assert history.limits[2:].count(50) == 2


async def event(stream: StreamReader) -> str:
    """The next event of a page's live part."""
    lines = list[bytes]()
    while True:
        line = await stream.readline()
        lines.append(line)
        if line == b"\n" and lines[0].startswith(b"event:"):
            return b"".join(lines).decode()
        if line == b"\n":
            lines.clear()
