"""Tests of the fault harness's receivers and callback, run as a process: the responses in each mode, and the ledger."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import pytest
from aiohttp import ClientResponse, ClientSession, ServerDisconnectedError
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from bench.children import Child, own_environ
from relay.domain.identity import webhook_id
from relay.domain.requests import attribute_value
from tests.faults.harness.history import (
    NOTHING,
    Arrival,
    Asked,
    Key,
    Ping,
    Record,
    Returned,
    Unheard,
    answer_to,
    digest_of,
)
from tests.faults.harness.ledger import read
from tests.faults.harness.party import Behaviour, Pace, reaction

BODY: Final = b'{"ref": "refs/heads/main"}'
SOURCE: Final = "git/hub"
AWKWARD: Final = "m/1 é%2F?"
SPEC: Final[dict[str, dict[str, object]]] = {
    "ci": {"mode": "answer"},
    "ready": {"mode": "later"},
    "working": {"mode": "later", "seconds": 3600},
    "builds": {"mode": "builds"},
    "queued": {"mode": "builds", "seconds": 3600},
    "hang": {"mode": "hang"},
    "fail": {"mode": "fail"},
    "slow": {"mode": "slow", "seconds": 0.2},
    "lossy": {"mode": "lossy", "chance": 1},
    "narrow": {"mode": "answer", "rate": 0.001},
    "blind": {"mode": "answer", "status": False},
}
Answering = AbstractAsyncContextManager[ClientResponse]
T = TypeVar("T", bound=Record)


class Rig:
    """The process, and a client of it."""

    def __init__(self, child: Child, port: int, ledger: Path, session: ClientSession) -> None:
        self.child = child
        self.port = port
        self._base = f"http://127.0.0.1:{port}"
        self._ledger = ledger
        self._session = session

    def post(self, receiver: str, message_id: str = "m-1", *, attempt: int = 1, **more: str) -> Answering:
        headers = headers_of(message_id, attempt) | {name.replace("_", "-"): value for name, value in more.items()}
        return self._session.post(f"{self._base}/r/{receiver}", data=BODY, headers=headers)

    def ask(self, receiver: str, name: str) -> Answering:
        return self._session.get(URL(f"{self._base}/r/{receiver}/{quote(name, safe='')}", encoded=True))

    def call_back(self, body: bytes, outcome: str) -> Answering:
        headers = {
            "webhook-id": "ans_x_ci_0",
            "relay-source": attribute_value(SOURCE),
            "relay-message-id": attribute_value(AWKWARD),
            "relay-receiver": "ci",
            "relay-outcome": outcome,
        }
        return self._session.post(f"{self._base}/callback", data=body, headers=headers)

    async def control(self, name: str, **changes: object) -> tuple[int, bytes]:
        async with self._session.put(f"{self._base}/control/{name}", json=changes) as response:
            return response.status, await response.read()

    def records(self, kind: type[T]) -> list[T]:
        return [record for record in read(self._ledger) if isinstance(record, kind)]


def headers_of(message_id: str, attempt: int) -> dict[str, str]:
    return {
        "webhook-id": webhook_id(SOURCE, message_id),
        "ce-id": attribute_value(message_id),
        "ce-source": attribute_value(SOURCE),
        "relay-attempt": str(attempt),
        "relay-generation": "2",
        "relay-sequence": "17",
    }


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    ledger = tmp_path / "ledger"
    command = [sys.executable, "-m", "tests.faults.harness.outside", "--ledger", str(ledger)]
    command += ["--receivers", str(tmp_path / "spec.json")]
    child = Child("outside", command, tmp_path, environ=own_environ(), piped=True)
    await child.start()
    try:
        port = int(json.loads(await child.read_line())["port"])
        async with ClientSession() as session:
            yield Rig(child, port, ledger, session)
    finally:
        await child.stop()


async def test_a_delivery_is_in_the_ledger_before_its_answer_comes_even_if_the_process_dies(rig: Rig) -> None:
    async with rig.post("ci", AWKWARD, attempt=3) as response:
        os.kill(rig.child.pid, signal.SIGKILL)
        answer = await response.read()
        assert response.status == 200
    (arrival,) = rig.records(Arrival)
    assert (arrival.key, arrival.digest) == (Key(SOURCE, AWKWARD, "ci"), digest_of(BODY))
    assert (arrival.attempt, arrival.generation, arrival.sequence) == (3, 2, 17)
    assert (arrival.status, arrival.processed) == (200, True)
    assert answer == answer_to(arrival.key, arrival.digest)


async def test_an_item_gets_its_build_and_the_build_its_answer(rig: Rig) -> None:
    for receiver in ("builds", "queued"):
        async with rig.post(receiver, "m-1") as response:
            assert (response.status, await response.json()) == (202, {"item": "m-1"})
    answer = answer_to(Key(SOURCE, "m-1", "builds"), digest_of(BODY))
    expected: dict[tuple[str, str], tuple[int, bytes]] = {
        ("builds/item", "m-1"): (200, b'{"build":"m-1"}'),
        ("builds/build", "m-1"): (200, answer),
        ("builds/item", "m-2"): (404, b""),
        ("queued/item", "m-1"): (200, b"{}"),
        ("queued/build", "m-1"): (202, b""),
    }
    for (step, name), said in expected.items():
        async with rig.ask(step, name) as response:
            assert (response.status, await response.read()) == said


async def test_the_status_endpoint_knows_what_was_processed_by_both_names(rig: Rig) -> None:
    for receiver, status in (("ci", 200), ("ready", 202), ("working", 202), ("fail", 500), ("blind", 200)):
        async with rig.post(receiver, AWKWARD) as response:
            assert response.status == status
    expected = {"ci": 200, "ready": 200, "working": 202, "fail": 404, "hang": 404, "blind": 405}
    names = (AWKWARD, webhook_id(SOURCE, AWKWARD))
    for receiver, status in expected.items():
        for name in names:
            async with rig.ask(receiver, name) as response:
                assert response.status == status
                if status == 200:
                    assert await response.read() == answer_to(Key(SOURCE, AWKWARD, receiver), digest_of(BODY))
    asked = [(each.receiver, each.asked_for, each.status) for each in rig.records(Asked)]
    assert asked == [(receiver, name, status) for receiver, status in expected.items() for name in names]
    assert [each.processed for each in rig.records(Arrival)] == [True, True, True, False, True]


async def test_a_lost_answer_is_of_a_processed_message(rig: Rig) -> None:
    with pytest.raises(ServerDisconnectedError):
        async with rig.post("lossy"):
            pass
    async with rig.ask("lossy", "m-1") as response:
        assert response.status == 200
    assert [(each.status, each.processed) for each in rig.records(Arrival)] == [(None, True)]


async def test_a_client_that_is_gone_when_its_answer_is_due_has_not_heard_it(rig: Rig) -> None:
    lines = [f"{name}: {value}" for name, value in headers_of("m-1", 4).items()]
    head = "\r\n".join(["POST /r/slow HTTP/1.1", *lines, f"content-length: {len(BODY)}"])
    _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    with closing(writer):
        writer.write(head.encode() + b"\r\n\r\n" + BODY)
    await writer.wait_closed()
    while not rig.records(Arrival):
        await rig.control("slow")  # to and fro, until it has got there
    async with rig.post("slow", "m-2"):  # takes as long, and began later
        pass
    (unheard,) = rig.records(Unheard)
    key = (unheard.source, unheard.message_id, unheard.receiver)
    assert (key, unheard.attempt, unheard.generation) == ((SOURCE, "m-1", "slow"), 4, 2)


async def test_above_its_rate_a_receiver_refuses_and_says_when_to_come_again(rig: Rig) -> None:
    async with rig.post("narrow", "m-1") as first, rig.post("narrow", "m-2") as second:
        assert (first.status, second.status) == (200, 429)
        assert 900 < int(second.headers["retry-after"]) <= 1000
    async with rig.post("narrow", ce_type="relay.ping") as ping:
        assert ping.status == 200
    assert [(each.message_id, each.processed) for each in rig.records(Arrival)] == [("m-1", True), ("m-2", False)]


async def test_a_ping_is_met_like_a_post_and_is_no_arrival(rig: Rig) -> None:
    for receiver, status in (("ci", 200), ("fail", 500)):
        async with rig.post(receiver, ce_type="relay.ping") as response:
            assert response.status == status
    assert [(each.receiver, each.status) for each in rig.records(Ping)] == [("ci", 200), ("fail", 500)]
    assert rig.records(Arrival) == []
    async with rig.ask("ci", "m-1") as response:
        assert response.status == 404


async def test_a_receiver_can_be_changed_while_it_runs(rig: Rig) -> None:
    hanging = asyncio.ensure_future(rig.post("hang").__aenter__())
    while not rig.records(Arrival):
        await rig.control("ci")
    status, behaviour = await rig.control("hang", mode="answer")
    assert (status, json.loads(behaviour)["mode"]) == (200, "answer")
    async with rig.post("hang", attempt=2) as response:
        assert response.status == 200
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    assert [(each.status, each.processed) for each in rig.records(Arrival)] == [(None, False), (200, True)]

    status, text = await rig.control("ci", mode="sulk")
    assert (status, b"sulk" in text) == (400, True)
    assert (await rig.control("ci", moood="fail"))[0] == 400
    assert (await rig.control("nobody"))[0] == 404
    async with rig.post("ci") as response:
        assert response.status == 200


async def test_results_are_taken_by_the_callback_unless_it_refuses_them(rig: Rig) -> None:
    notice = json.dumps({"source_id": SOURCE, "message_id": AWKWARD, "receiver": "ci", "reason": "gone"}).encode()
    for body in (notice, notice.replace(b'"ci"', b'"cd"')):
        async with rig.call_back(body, "failed") as response:
            assert response.status == 200
    await rig.control("callback", mode="fail")
    async with rig.call_back(b"never", "answered") as response:
        assert response.status == 500
    await rig.control("callback", mode="lossy", chance=1)
    with pytest.raises(ServerDisconnectedError):
        async with rig.call_back(b"answer", "answered"):
            pass
    records = rig.records(Returned)
    assert [each.key for each in records] == [Key(SOURCE, AWKWARD, "ci")] * 3
    assert [(each.result_id, each.outcome, each.digest, each.status) for each in records] == [
        ("ans_x_ci_0", "failed", NOTHING, 200),
        ("ans_x_ci_0", "failed", digest_of(notice.replace(b'"ci"', b'"cd"')), 200),
        ("ans_x_ci_0", "answered", digest_of(b"answer"), None),
    ]


async def test_a_broken_request_is_refused_and_a_wrong_spec_ends_it(rig: Rig, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    with closing(writer):
        writer.write(b"NONSENSE\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    (tmp_path / "wrong.json").write_text('{"ci": {"mode": "sulk"}}')
    arguments = ["--ledger", str(tmp_path / "other"), "--receivers", str(tmp_path / "wrong.json")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.harness.outside", *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"--receivers: Invalid enum value 'sulk'" in said


@given(st.floats(0.1, 50), st.lists(st.floats(0, 3), max_size=60))
def test_a_pace_lets_no_more_than_its_rate_through_and_says_when_to_come_again(rate: float, gaps: list[float]) -> None:
    pace, now, let_through = Pace(), 0.0, list[float]()
    for gap in gaps:
        now += gap
        wait_s = pace.wait_s(rate, now)
        if wait_s > 0:
            assert pace.wait_s(rate, now + wait_s + 1e-6) == 0.0
            now += wait_s + 1e-6
        let_through.append(now)
    window_s, most = max(1.0, 1 / rate), max(1, int(rate * max(1.0, 1 / rate)))
    for start in let_through:
        assert sum(start <= at < start + window_s - 1e-6 for at in let_through) <= most


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_a_flaky_receiver_is_healthy_or_meets_a_flaw_by_chance(first: float, second: float, chance: float) -> None:
    met = reaction(Behaviour("flaky", chance=chance), iter([first, second]).__next__)
    healthy = (met.status, met.processed) == (200, True)
    assert healthy == (first >= chance)
    if not healthy:
        assert (met.status, met.processed) in {(None, True), (None, False), (500, False), (503, False)}
