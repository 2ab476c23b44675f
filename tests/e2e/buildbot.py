"""A Buildbot for a test, in a separate environment that `make e2e` installs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientConnectionError, ClientSession

ENVIRONMENT: Final = Path(__file__).parents[2] / ".venv-e2e"
INSTALLED: Final = (ENVIRONMENT / "bin" / "buildbot").exists()
MASTER_CFG: Final = Path(__file__).with_name("master.cfg").read_text()
SUCCESS, FAILURE, CANCELLED = 0, 2, 6
"""Results of builds. Those that were running when it was stopped are cancelled."""


def result_of(revision: str) -> int:
    """The result of a build of this commit, as `master.cfg` has it."""
    return SUCCESS if revision[0] in "01234567" else FAILURE


_START_TIMEOUT_S: Final = 60.0


class Buildbot:
    """A build master with a worker in the same process, and SQLite. It can be restarted on the same port."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._environ = clean_environ() | {"BUILDBOT_PORT": str(port)}
        self._process: asyncio.subprocess.Process | None = None

    async def create(self, master_cfg: str = MASTER_CFG) -> None:
        """Make the folder, with the database."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "master.cfg").write_text(master_cfg)
        made = await self._buildbot("create-master", "--quiet")
        assert await made.wait() == 0, self.output()

    async def start(self) -> None:
        """Run it, and wait until its API answers."""
        self._process = process = await self._buildbot("start", "--nodaemon")
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not await self._answers():
                assert process.returncode is None, self.output()
                await asyncio.sleep(0.1)

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """End it with this signal. After a SIGKILL, builds in progress are made anew at the next start."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            await asyncio.wait_for(process.wait(), _START_TIMEOUT_S)

    def output(self) -> str:
        """The last of its output and its log."""
        files = [self._folder / name for name in ("output.txt", "twistd.log")]
        return "\n".join(file.read_text()[-5000:] for file in files if file.exists())

    async def get(self, path: str) -> dict[str, Any]:
        """A GET of its REST API, e.g. `buildsets?complete=false`."""
        async with ClientSession() as session, session.get(f"{self.url}/api/v2/{path}") as response:
            assert response.status == 200, await response.text()
            found: dict[str, Any] = await response.json(content_type=None)  # it says text/plain
            return found

    async def force(self, **parameters: str) -> int:
        """Start a build; returns the id of its buildset."""
        call = {"jsonrpc": "2.0", "method": "force", "id": 1, "params": parameters}
        async with (
            ClientSession() as session,
            session.post(f"{self.url}/api/v2/forceschedulers/force", json=call) as response,
        ):
            assert response.status == 200, await response.text()
            return int((await response.json())["result"][0])

    async def result(self, buildset: int, timeout_s: float = 30.0) -> int:
        """The result of a buildset, once it is complete."""
        async with asyncio.timeout(timeout_s):
            while True:
                [found] = (await self.get(f"buildsets/{buildset}"))["buildsets"]
                if found["complete"]:
                    return int(found["results"])
                await asyncio.sleep(0.1)

    async def _answers(self) -> bool:
        try:
            return bool((await self.get("builders"))["builders"])
        except (ClientConnectionError, AssertionError):
            return False

    async def _buildbot(self, command: str, *options: str) -> asyncio.subprocess.Process:
        with (self._folder / "output.txt").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                str(ENVIRONMENT / "bin" / "buildbot"),
                command,
                *options,
                str(self._folder),
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )


@asynccontextmanager
async def running_buildbot(folder: Path, port: int) -> AsyncIterator[Buildbot]:
    """A Buildbot that is stopped at the end of the block."""
    buildbot = Buildbot(folder, port)
    await buildbot.create()
    try:
        await buildbot.start()
        yield buildbot
    finally:
        await buildbot.stop(signal.SIGKILL)


def clean_environ() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
