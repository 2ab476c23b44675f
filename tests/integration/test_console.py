"""Tests of the console commands as processes: `relay dev` in a terminal and in a pipe, `relay tail`, `top` and
`listen`."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from rich.cells import cell_len
from rich.text import Text

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.fork_server import Job
from tests.servers.forking import Forked, run
from tests.servers.http import serving, started
from tests.servers.process import LINE_TIMEOUT_S, RelayProcess, relay_dev


class Terminal:
    """A `relay` command in a terminal of 80 by 24. `output`: what it wrote, with all that steers the terminal."""

    def __init__(self, process: Forked, leader: int) -> None:
        self.output = ""
        self._process = process
        self._leader = leader
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(leader, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._leader, 65_536)
        except OSError:  # the other end is closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._leader)
        self.output += data.decode(errors="replace")
        self._changed.set()

    async def shows(self, pattern: str) -> str:
        """The first thing that fits."""
        async with asyncio.timeout(LINE_TIMEOUT_S):
            while (found := re.search(pattern, self.output)) is None:
                assert self._process.returncode is None, self.output
                self._changed.clear()
                await self._changed.wait()
            return found[0]

    def rows(self) -> list[str]:
        """What can be read of it."""
        plain = Text.from_ansi(self.output.replace("\r\n", "\n")).plain
        return plain.splitlines()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)


@asynccontextmanager
async def terminal(*arguments: str, cwd: Path) -> AsyncIterator[Terminal]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "NO_COLOR"))}
    job = Job("relay", arguments, str(cwd), clean | {"TERM": "xterm-256color"})
    process = await asyncio.to_thread(Forked, job, (follower, follower, follower))
    os.close(follower)
    try:
        yield Terminal(process, leader)
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), 30)
        asyncio.get_running_loop().remove_reader(leader)
        os.close(leader)


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[RelayProcess]:
    async with relay_dev(tmp_path) as process:
        yield process


async def test_dev_in_a_terminal_shows_what_happens_to_every_receiver(tmp_path: Path) -> None:
    (tmp_path / "receivers.yaml").write_text(
        json.dumps(
            {
                "receivers": {
                    "down": {
                        "post_endpoint": "http://127.0.0.1:9/",
                        "retry": {"base": 0.2, "factor": 1, "cap": 0.2, "max_attempts": 2},
                    }
                }
            }
        )
    )
    async with terminal("dev", "--port", "0", "--ephemeral", cwd=tmp_path) as dev:
        await dev.shows("Ready")
        api = (await dev.shows(r"API +http://\S+")).split()[1]
        for receiver in ("demo", "down"):
            sent = ("send", "--source", "github", "--receiver", receiver, "--id", f"to-{receiver}", "-", "--api", api)
            assert (await asyncio.to_thread(_run, *sent)) == 0
        await dev.shows("relay failed replay")
        await dev.shows(r"<--\S* \S*refused")
        await dev.shows(rf"{re.escape(api)}/ui/messages/github/to-demo")
        told = [row for row in dev.rows() if re.match(r"\d\d:\d\d:\d\d ", row)]
        assert any(re.search(r"--> to-demo github to demo", row) for row in told)
        assert any(re.search(r"<-- 200 \d+ ms demo to-demo", row) for row in told)
        assert any(re.search(r"<== to-demo demo 200", row) for row in told)
        assert any(re.search(r"!!! to-down down exhausted", row) for row in told)
        assert any("retry in 0." in row and ": refused" in row for row in dev.rows())
        assert all(cell_len(row) <= 80 for row in told)
        assert "\x1b[31m" in dev.output  # red
        assert '"event": "attempt"' not in dev.output


def _run(*arguments: str) -> int:
    return run(*arguments, stdin=b"{}").returncode


async def test_dev_in_a_pipe_says_the_same_without_colour(dev: RelayProcess) -> None:
    await relay(dev, "send", "--source", "github", "--receiver", "demo", "--id", "m-1", "-", stdin=b"{}")
    await dev.line_with("--> m-1 github to demo")
    await dev.line_with("<== m-1 demo 200")
    assert re.search(r"<-- 200 \d+ ms demo m-1", await dev.line_with(" ms demo m-1"))
    assert not any("\x1b" in line for line in dev.lines)
    assert dev.value_of("Pages") == dev.value_of("API") + "/ui/"


async def test_tail_shows_what_it_is_asked_for(dev: RelayProcess, tmp_path: Path) -> None:
    api = dev.value_of("API")
    narrowed = ("tail", "--api", api, "--source", "github", "--type", "pull*")
    async with (
        RelayProcess(*narrowed, cwd=tmp_path) as lines,
        RelayProcess(*narrowed, "-o", "json", cwd=tmp_path) as objects,
    ):
        async with asyncio.timeout(LINE_TIMEOUT_S):
            for n in range(1_000):  # nothing says that they listen, and nothing should
                await relay(dev, "trigger", "github.pull_request.opened", "--receiver", "demo", "--source", "github")
                if any("<==" in line for line in lines.lines) and any("answer" in line for line in objects.lines):
                    break
                assert n < 100
        found = [json.loads(line) for line in objects.lines]
        assert {one["event"] for one in found} >= {"message", "answer"}
        assert {one["data"]["source_id"] for one in found} == {"github"}
        lines.signal(signal.SIGINT)
        await lines.finish()
        assert lines.returncode == 0


async def test_top_looks_once(dev: RelayProcess) -> None:
    await relay(dev, "send", "--source", "github", "--receiver", "demo", "--wait", "20", "-", stdin=b"{}")
    code, said = await relay(dev, "top", "--once")
    assert code == 0, said
    assert "RECEIVER, 24 H" in said
    assert "demo" in said
    code, said = await relay(dev, "top", "-o", "json", "--receiver", "demo")
    assert code == 0, said
    assert [one["name"] for one in json.loads(said)["receivers"]] == ["demo"]
    code, said = await relay(dev, "top", "--once", "--receiver", "nobody")
    assert (code, "no receiver named 'nobody'" in said) == (1, True), said


async def test_top_in_a_terminal_looks_again_until_it_is_stopped(dev: RelayProcess, tmp_path: Path) -> None:
    async with terminal("top", "--api", dev.value_of("API"), "--every", "0.5", cwd=tmp_path) as top:
        await top.shows(r"RECEIVER, 24 H(.|\n)*RECEIVER, 24 H")


async def test_listen_brings_messages_to_a_port_and_leaves_nothing_behind(dev: RelayProcess, tmp_path: Path) -> None:
    api = dev.value_of("API")
    target = Sink("answer")
    async with (
        started(target),
        RelayProcess("listen", target.url, "--source", "github", "--type", "pu*", "--api", api, cwd=tmp_path) as listen,
    ):
        name = re.search(r"listen-[0-9a-f]{6}", await listen.line_with("Listening as"))
        assert name is not None
        await relay(dev, "send", "--source", "github", "--type", "push", "--id", "m-1", "-", stdin=b'{"n": 1}')
        await relay(dev, "send", "--source", "github", "--receiver", name[0], "--id", "m-2", "-", stdin=b"2")
        await target.wait_for(2)
        await listen.line_with('--> m-1 push github {"n": 1}')
        assert re.search(r"<-- 200 \d+ ms m-1 {\"id\"", (await listen.lines_with(" ms m-1 ", 1))[0])
        _, said = await relay(dev, "status", "github", "m-1", "-o", "json")
        assert name[0] in said
        await target.stop()
        await relay(dev, "send", "--source", "github", "--receiver", name[0], "--id", "m-3", "-", stdin=b"3")
        await listen.line_with("<-- nothing")
        listen.signal(signal.SIGINT)
        said = await listen.finish()
        assert listen.returncode == 0, said
        assert f"{name[0]}: removed" in said
        assert "Not accepted yet: 1" in said
    _, said = await relay(dev, "receivers", "list", "--registered")
    assert "listen-" not in said


async def test_listen_proves_that_it_wants_messages_where_the_relay_asks_for_that(tmp_path: Path) -> None:
    environ = {"RELAY_API_VERIFICATION": "hmac"}
    async with relay_dev(tmp_path, "--no-demo", environ=environ) as dev:
        arguments = ("listen", "3000", "--receiver", "listen-here", "--api", dev.value_of("API"))
        async with RelayProcess(*arguments, cwd=tmp_path) as listen:
            await listen.line_with("Listening as receiver listen-here")


async def test_what_a_killed_listen_left_is_removed_by_the_next(dev: RelayProcess, tmp_path: Path) -> None:
    api = dev.value_of("API")
    async with RelayProcess("listen", "3000", "--receiver", "listen-first", "--api", api, cwd=tmp_path) as first:
        await first.line_with("Listening as")
        first.signal(signal.SIGKILL)
        await first.finish()
    async with RelayProcess("listen", "3000", "--api", api, cwd=tmp_path) as second:
        await second.line_with("listen-first: removed; its relay listen was killed")
        await second.line_with("Listening as")


def far_away() -> AbstractAsyncContextManager[str]:
    """An API that reports that it reached the receiver, although another server answered there."""

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"items": [], "cursor": None})
        if request.method == "DELETE":
            parked, in_lane = {"retries": 0, "polls": 0}, {"lane": "shared", "unfinished": 0}
            messages = {"in_lane": in_lane, "parked": parked, "then": "they end"}
            return web.json_response({"name": "x", "removed": True, "messages": messages})
        if request.path == "/v1/receivers":
            declared: dict[str, object] = {
                "declared_by": "api",
                "owner": None,
                "labels": {},
                "etag": "1",
                "settings": {},
                "given": [],
                "from_preset": [],
            }
            return web.json_response({"name": "x", "secret": "whsec_x"} | declared, status=201)
        response = {"status": 200, "headers": {}, "body": "", "truncated": False}
        sent = {"method": "POST", "url": "http://x/", "headers": {}, "body": ""}
        outcome = {"response": response, "failure": None, "duration_ms": 1.0}
        return web.json_response({"name": "x", "request": sent} | outcome)

    return serving(answer)


async def test_listen_says_so_where_the_relay_cannot_reach_it(tmp_path: Path) -> None:
    async with RelayProcess("listen", "3000", "--api", "https://relay.example", cwd=tmp_path) as listen:
        said = await listen.finish()
    assert listen.returncode == 2
    assert "is not on this machine" in said
    assert "--public-url" in said
    async with far_away() as api, RelayProcess("listen", "3000", "--api", api, cwd=tmp_path) as listen:
        said = await listen.finish()
    assert listen.returncode == 1
    assert "another server answers at http://x/, with 200" in said
