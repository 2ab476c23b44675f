"""Tests of the limits that the API sets its clients: connections, time, and memory."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from yarl import URL

from relay.api.connection import MAX_LINE_BYTES, MAX_PIPELINED
from relay.config.limits import ApiLimits
from tests.integration.api_rig import NOW, Rig, problem, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.test_api_keys import SETTING, bearer
from tests.servers.process import relay_dev

CI = "/v1/sources/app/messages?receiver=ci"
BATCH = "/v1/sources/app/messages:batch?receiver=ci"
HALF_HEAD = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"
LIVEZ = HALF_HEAD + b"\r\n"
LAST_LIVEZ = HALF_HEAD + b"connection: close\r\n\r\n"
HALF_POST = f"POST {CI} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nabc".encode()
MIB = 1024**2
TIMEOUT_S = 120.0


class Peer:
    """A connection to the API, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def sends(self, data: bytes) -> "Peer":
        self.writer.write(data)
        await self.writer.drain()
        return self

    async def status(self) -> int:
        """The status of the next response, after reading its body."""
        async with asyncio.timeout(TIMEOUT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            await self.reader.readexactly(length)
        return int(head.split()[1])

    async def ended(self) -> bytes:
        """All bytes until the connection is closed."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    @property
    def open(self) -> bool:
        return not self.reader.at_eof()


@asynccontextmanager
async def peers(url: str) -> AsyncIterator[Callable[..., asyncio.Future[Peer]]]:
    """Opens connections; all are closed at the end."""
    port = URL(url).port
    async with AsyncExitStack() as stack:

        async def connect(data: bytes = b"", local: str | None = None) -> Peer:
            from_ = (local, 0) if local else None
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=from_)
            stack.callback(writer.close)
            return await Peer(reader, writer).sends(data)

        yield lambda *given, **named: asyncio.ensure_future(connect(*given, **named))


async def is_served(connect: Callable[..., asyncio.Future[Peer]]) -> bool:
    """Whether /livez was answered. Otherwise the connection was refused."""
    try:
        return (await (await connect(LAST_LIVEZ)).ended()).startswith(b"HTTP/1.1 200 ")
    except ConnectionError:
        return False


def bounded(**limits: float) -> ApiLimits:
    return ApiLimits(**{"connections": 3, "per_address": 3, "reserve": 1} | limits)  # type: ignore[arg-type]


# --- connections ------------------------------------------------------------------------------------------------


async def test_at_the_cap_the_one_longest_without_a_head_is_closed_for_a_newcomer() -> None:
    async with running_api(limits=bounded()) as rig, peers(rig.url) as connect:
        first, second, third = await connect(LIVEZ), await connect(HALF_HEAD), await connect()
        assert await first.status() == 200
        assert await (await first.sends(LIVEZ)).status() == 200  # so that it is the last one to wait
        newcomers = []
        for closed in (second, third, first):
            newcomers.append(newcomer := await connect(LIVEZ))
            assert await newcomer.status() == 200
            assert await closed.ended() == b""
        assert all(newcomer.open for newcomer in newcomers)


async def test_one_at_work_gives_way_to_nobody_and_monitoring_is_answered_all_the_same() -> None:
    async with running_api(limits=bounded()) as rig, peers(rig.url) as connect:
        at_work = [await connect(HALF_POST) for _ in range(3)]
        for target in (b"/livez", b"/readyz", b"/metrics") * 3:
            one = await connect(b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert await one.status() == 200
            assert await one.ended() == b""  # its place is for the next one who looks
        refused = await connect(HALF_POST)
        assert await refused.status() == 503
        assert await (await connect(LIVEZ)).status() == 200  # nor does the rest of a refused body keep that place
        assert await refused.ended() == b""
        await connect(HALF_HEAD)  # keeps the last place, but not from a newcomer
        assert await (await connect(LIVEZ)).status() == 200
        for peer in at_work:
            assert await (await peer.sends(b"defghi")).status() == 202
        assert await (await connect(HALF_POST + b"defghi")).status() == 202


async def test_one_address_does_not_take_the_places_of_others() -> None:
    async with running_api(limits=bounded(per_address=2)) as rig, peers(rig.url) as connect:
        other = await connect(local="127.0.0.2")
        mine = [await connect(HALF_HEAD) for _ in range(6)]
        assert await (await other.sends(LIVEZ)).status() == 200
        for peer in mine[:4]:
            assert await peer.ended() == b""
        for peer in mine[4:]:
            assert await (await peer.sends(b"\r\n")).status() == 200


# --- framing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "coding"), [(b"1.0", b"chunked"), (b"1.1", b"gzip, chunked")])
async def test_a_body_that_a_proxy_may_end_elsewhere_ends_the_connection(
    rig: Rig, version: bytes, coding: bytes
) -> None:
    """RFC 9112, 6.1: what follows may be a part of the body, which a proxy has passed on as such."""
    head = f"POST {CI} HTTP/".encode() + version + b"\r\nhost: localhost\r\nconnection: keep-alive\r\n"
    async with peers(rig.url) as connect:
        peer = await connect(head + b"transfer-encoding: " + coding + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + LIVEZ)
        assert await peer.status() == 400
        assert await peer.ended() == b""
        assert rig.records(rig.topics.from_sender) == []


# --- time -------------------------------------------------------------------------------------------------------


async def test_a_head_that_does_not_end_is_ended() -> None:
    async with running_api(limits=bounded(head_s=0.1)) as rig, peers(rig.url) as connect:
        assert (await (await connect(HALF_HEAD)).ended()).startswith(b"HTTP/1.1 408 ")
        assert await (await connect()).ended() == b""
        again = await connect(LIVEZ)
        assert await again.status() == 200
        assert (await (await again.sends(b"GET /")).ended()).startswith(b"HTTP/1.1 408 ")


async def test_a_byte_now_and_then_keeps_no_connection() -> None:
    async with running_api(limits=bounded(head_s=0.1)) as rig, peers(rig.url) as connect:
        peer = await connect(HALF_HEAD + b"x: ")

        async def drip() -> None:
            while True:
                await peer.sends(b"x")
                await asyncio.sleep(0)

        dripping = asyncio.create_task(drip())
        await peer.ended()
        dripping.cancel()
        await asyncio.wait([dripping])


async def test_an_idle_connection_is_closed_but_not_while_it_works() -> None:
    async with running_api(limits=bounded(idle_s=0.1, head_s=0.1)) as rig, peers(rig.url) as connect:
        at_work, idle = await connect(HALF_POST), await connect(LIVEZ)
        assert await idle.status() == 200
        assert await idle.ended() == b""
        assert await (await at_work.sends(b"defghi")).status() == 202


async def test_a_body_that_stalls_is_ended() -> None:
    async with running_api(limits=bounded(stall_s=0.1)) as rig, peers(rig.url) as connect:
        peer = await connect(HALF_POST)
        assert await peer.status() == 408
        assert await peer.ended() == b""
    async with running_api(limits=bounded(body_s=0.1, stall_s=0.2)) as rig, peers(rig.url) as connect:
        assert await (await connect(HALF_POST)).status() == 408


async def test_a_response_that_nobody_takes_is_given_up() -> None:
    text = b"m 1\n" * 16 * MIB
    only_one = bounded(connections=1, per_address=1, reserve=0, write_s=0.1)
    async with running_api(limits=only_one, metrics=lambda: text) as rig, peers(rig.url) as connect:
        with socket.create_connection(("127.0.0.1", URL(rig.url).port or 0)) as greedy:
            greedy.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(TIMEOUT_S):
                while not await is_served(connect):
                    pass  # refused: the only place is taken


# --- bytes ------------------------------------------------------------------------------------------------------


def headers(size: int) -> dict[str, str]:
    return {f"x-{number}": "x" * 8_000 for number in range(size // 8_000)}


async def test_headers_are_limited_in_all(rig: Rig) -> None:
    async with peers(rig.url) as connect:
        assert (await rig.get("/v1/failed", **headers(56_000))).status == 200
        problem(await rig.get("/v1/failed", **headers(72_000)), 431, "headers-too-large")
        endless = await connect(HALF_HEAD)
        for number in range((64 * 1024 + MAX_LINE_BYTES) // 8_000 + 1):
            endless.writer.write(b"x-%d: %b\r\n" % (number, b"x" * 8_000))
        assert (await endless.ended()).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n\r\n" % (b"secret" * 2_000),
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % b"".join(b"x-secret: %d\r\n" % n for n in range(200)),
        b"GET /livez?%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % (b"secret" * (MAX_LINE_BYTES // 5)),
    ],
    ids=["a long one", "many", "the request line"],
)
async def test_a_head_with_a_long_line_or_many_headers_is_a_431_which_repeats_nothing_of_it(head: bytes) -> None:
    async with running_api() as rig, peers(rig.url) as connect:
        answer = await (await connect(head)).ended()
    assert b" 431 " in answer.partition(b"\r\n")[0]
    refused = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert refused["type"] == "/problems/headers-too-large"
    assert "secret" not in refused["detail"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez?limit=\xc2\xb2 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: a/b\r\ncontent-type: a/c\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 secret-of-a-client\r\n\r\n",
        b"GET http://[::1/v1/answers/secret HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: nonsense\r\ncontent-length: 1\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_problem_which_repeats_nothing_of_it(head: bytes) -> None:
    async with running_api() as rig, peers(rig.url) as connect:
        answer = await (await connect(head)).ended()
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.split(b"\r\n")[0].split(b" ")[1] == b"400"
    assert {b"Content-Type: application/problem+json", b"Server: relay"} <= set(top.split(b"\r\n"))
    told = json.loads(body)
    assert told["type"] == "/problems/invalid-request"
    assert told["detail"].startswith("The request is not valid HTTP")
    assert not {word for word in ("secret", "nonsense", "\\x") if word in told["detail"]}


async def test_unfinished_heads_are_limited_over_all_connections() -> None:
    async with running_api(limits=ApiLimits(heads_bytes=100_000)) as rig, peers(rig.url) as connect:
        part = b"".join(b"x-%d: %b\r\n" % (number, b"x" * 7_000) for number in range(6))
        first = await connect(HALF_HEAD + part)
        second, third = await connect(HALF_HEAD + part), await connect(HALF_HEAD + part)
        assert (await first.ended()).startswith(b"HTTP/1.1 408 ")
        for peer in (second, third):
            assert await (await peer.sends(b"\r\n")).status() == 200


async def test_a_large_part_of_the_next_head_that_comes_with_a_request_ends_the_connection(rig: Rig) -> None:
    part = HALF_HEAD + b"".join(b"x-%d: %b\r\n" % (number, b"x" * 4_000) for number in range(10))
    body = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
    async with peers(rig.url) as connect:
        early = b"".join(body % (b"/v1/nothing", size, b"x" * size) for size in (20_000, 40_000))
        kept = [await connect(LIVEZ + HALF_HEAD), await connect(early + HALF_HEAD)]
        assert [await kept[0].status(), await kept[1].status(), await kept[1].status()] == [200, 404, 404]
        for before, status in ((LIVEZ, 200), (early, 404)):
            peer = await connect(before + part)
            assert await peer.status() == status
            assert HALF_HEAD not in await peer.ended()
        for peer in kept:
            assert await (await peer.sends(b"\r\n")).status() == 200


async def test_few_requests_wait_behind_the_one_in_progress(rig: Rig) -> None:
    long = HALF_HEAD + b"".join(b"x-%d: %b\r\n" % (number, b"x" * 8_000) for number in range(60)) + b"\r\n"
    waits = f"POST {CI}&wait=30 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{{}}".encode()
    async with peers(rig.url) as connect:
        one = await connect(LIVEZ)
        assert await one.status() == 200
        assert rig.server._runner is not None
        assert rig.server._runner.server is not None
        [connection] = rig.server._runner.server.connections
        one.writer.write(waits + long * 40)
        async with asyncio.timeout(TIMEOUT_S):
            while connection.transport is not None and connection.transport.is_reading():
                assert await livez(rig.url) == 200
        assert len(connection._messages) == MAX_PIPELINED
        many = await connect(LIVEZ * 1_000)
        for _ in range(2):
            assert [await many.status() for _ in range(1_000)] == [200] * 1_000
            await many.sends(LIVEZ * 1_000)


def batch_head(length: int, key: str = "none") -> bytes:
    head = f"POST {BATCH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\nauthorization: {key}\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


LINE = b'{"payload": {}}\n'


async def test_where_there_is_no_memory_for_a_large_body_there_is_for_small_ones() -> None:
    async with running_api(limits=ApiLimits(body_bytes=24 * MIB, room_s=0.1)) as rig, peers(rig.url) as connect:
        first = await connect(batch_head(12 * MIB) + LINE)
        assert await (await connect(batch_head(12 * MIB) + LINE)).status() == 503
        assert (await rig.post(CI)).status == 202
        assert await (await first.sends(b" " * (12 * MIB - len(LINE)))).status() == 200


async def test_a_large_body_waits_for_its_turn() -> None:
    async with running_api(limits=ApiLimits(body_bytes=24 * MIB)) as rig, peers(rig.url) as connect:
        first, second = await connect(batch_head(12 * MIB) + LINE), await connect(batch_head(12 * MIB) + LINE)
        assert (await rig.post(CI)).status == 202
        rest = b" " * (12 * MIB - len(LINE))
        second.writer.write(rest)
        assert await (await first.sends(rest)).status() == 200
        assert await second.status() == 200


async def test_who_sends_slowly_delays_nobody_else() -> None:
    limits = ApiLimits(body_bytes=24 * MIB, stall_s=600, body_s=600, room_s=600)
    async with running_api(api_key=SETTING, limits=limits) as rig, peers(rig.url) as connect, asyncio.timeout(20):
        slow, other = [bearer(await rig.keys.make("ingest:app", now=NOW))["Authorization"] for _ in range(2)]
        await connect(batch_head(12 * MIB, slow) + LINE)
        await connect(batch_head(12 * MIB, slow) + LINE)  # it waits
        third = await connect(batch_head(4 * MIB, other) + LINE)
        assert await (await third.sends(b" " * (4 * MIB - len(LINE)))).status() == 200


async def test_memory_comes_back_from_those_who_go_away() -> None:
    async with running_api(limits=ApiLimits(body_bytes=24 * MIB)) as rig, peers(rig.url) as connect:
        for _ in range(5):
            gone = await connect(batch_head(16 * MIB) + b"{")
            gone.writer.close()
        assert await (await connect(batch_head(16) + b'{"payload": {}}\n')).status() == 200


# --- all of it, from outside ------------------------------------------------------------------------------------


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


async def livez(url: str) -> int:
    async with peers(url) as connect:
        return await (await connect(LIVEZ)).status()


@pytest.fixture
def many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))


async def test_from_outside_the_relay_lives_on(tmp_path: Path, many_descriptors: None) -> None:
    async with relay_dev(tmp_path, "--no-demo") as dev:
        url = dev.value_of("API")
        before = peak_mib(dev.pid)
        async with peers(url) as connect:
            await asyncio.gather(*(connect(HALF_HEAD) for _ in range(300)))
            assert await livez(url) == 200
            await asyncio.gather(*(connect() for _ in range(1_100)))
            assert await livez(url) == 200
        await stalled_batches(url)
        assert await livez(url) == 200
        assert peak_mib(dev.pid) - before < 64 + 100  # the bodies, and what so many connections take themselves


async def test_few_descriptors_are_not_all_taken_by_connections(tmp_path: Path, many_descriptors: None) -> None:
    async with relay_dev(tmp_path, "--no-demo", descriptors=256) as dev:
        url = dev.value_of("API")
        async with peers(url) as connect:
            await asyncio.gather(*(connect() for _ in range(1_100)))
            assert await livez(url) == 200


async def stalled_batches(url: str) -> None:
    """Send 40 batches of 16 MB without their last bytes, until the relay reads no more."""
    port, size = URL(url).port, 16 * MIB
    target = BATCH.replace("=ci", "=relay-probe").encode()
    left = dict[socket.socket, int]()
    with ExitStack() as sockets:
        for _ in range(40):
            peer = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            peer.sendall(batch_head(size).replace(BATCH.encode(), target))
            peer.setblocking(False)
            left[peer] = size - 1
        chunk, quiet = b" " * 65_536, 0
        while left and quiet < 200:  # looks at the relay, each a round trip, in which it took nothing more
            taken = sum(send_some(peer, chunk, left) for peer in list(left))
            quiet = 0 if taken else quiet + 1
            assert await livez(url) == 200


def send_some(peer: socket.socket, chunk: bytes, left: dict[socket.socket, int]) -> int:
    try:
        sent = peer.send(chunk[: left[peer]])
    except BlockingIOError:
        return 0
    except OSError:  # refused, and closed
        del left[peer]
        return 0
    left[peer] -= sent
    if not left[peer]:
        del left[peer]
    return sent
