"""Tests of payload URLs of thin events: they read one payload, for a while, as long as the receiver is the same."""

from collections.abc import AsyncIterator

import pytest

from relay.domain.answer_token import issue, issue_for_payload
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint, Life, Receiver
from relay.state.rows import TAGS
from tests.integration.api_rig import NOW, SECRET, Reply, Rig, problem, running_api
from workers.dependencies import Meter

DELIVERY = DeliveryId("ci", "app", "m-1")
PAYLOAD = b"<script>alert(1)</script>"


class Reads(Meter):
    def __init__(self) -> None:
        self.of: list[str] = []

    def payload_read(self, receiver: str) -> None:
        self.of.append(receiver)


READS = Reads()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    READS.of.clear()
    async with running_api(meter=READS) as running:
        headers = {"ce_id": "m-1", "content_type": "text/html"}
        assert (await running.post("/v1/sources/app/messages?receiver=ci", PAYLOAD, **headers)).status == 202
        yield running


def live(rig: Rig, life: Life) -> None:
    """The receiver `ci` is in this life of its name."""
    rig.directory.receivers["ci"] = Receiver("ci", Endpoint("https://ci.example/hooks"), payload="thin", life=life)


def url(delivery: DeliveryId = DELIVERY, life: str = "", secret: bytes = SECRET, lasts_s: int = 60) -> str:
    return f"/v1/payloads/{issue_for_payload(secret, delivery, life, int(NOW) + lasts_s)}"


async def read(rig: Rig, *args: object, **named: object) -> Reply:
    return await rig.get(url(*args, **named))  # type: ignore[arg-type]


async def test_the_payload_is_read_without_a_key_as_bytes_that_no_browser_runs(rig: Rig) -> None:
    reply = await read(rig)
    assert (reply.status, reply.body) == (200, PAYLOAD)
    expected = {
        "Content-Type": "text/html",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    assert {name: reply.headers[name] for name in expected} == expected
    assert reply.headers["Content-Disposition"].startswith("attachment")
    assert READS.of == ["ci"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (url(secret=b"another"), (404, "not-found")),
        (url()[:-1], (404, "not-found")),
        (f"/v1/payloads/{issue(SECRET, DELIVERY, 0, int(NOW) + 60)}", (404, "not-found")),
        (url(lasts_s=0), (410, "payload-gone")),
        (url(DeliveryId("ci", "app", "never-sent")), (410, "payload-gone")),
        (url(DeliveryId("removed", "app", "m-1")), (410, "payload-gone")),
    ],
)
async def test_any_other_url_reads_nothing(rig: Rig, path: str, expected: tuple[int, str]) -> None:
    problem(await rig.get(path), *expected)
    assert READS.of == []


LATER = (1_000,) * 10


@pytest.mark.parametrize(
    ("in_url", "life"),
    [
        ("first", Life("second", "t-from_sender", LATER)),  # another owner has the name by now
        ("", Life("second", "t-from_sender", LATER)),  # the same, where the former one was of the file
        ("first", Life()),  # the name is the file's by now
    ],
)
async def test_a_url_of_a_former_life_of_the_name_reads_nothing(rig: Rig, in_url: str, life: Life) -> None:
    live(rig, Life(in_url))
    assert (await read(rig, DELIVERY, in_url)).status == 200
    live(rig, life)
    problem(await read(rig, DELIVERY, in_url), 410, "payload-gone")


async def test_a_payload_whose_state_is_lost_is_not_read_as_another_one(rig: Rig) -> None:
    rig.state.away.add("messages")
    assert (await read(rig)).status == 503


async def test_a_payload_is_not_called_gone_while_its_message_is_restored(rig: Rig) -> None:
    rig.state.lose()
    await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=60)
    problem(await read(rig), 503, "unavailable")
    await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
    rig.state.asked.clear()
    problem(await read(rig), 410, "payload-gone")
    assert rig.state.asked.count("messages") == 1
