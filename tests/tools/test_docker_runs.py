"""Runs the relay's services of docker/compose.yaml as the image does: with its user, variables and working directory.

They cannot write to the image's prefix, and use real Kafka, Valkey and PostgreSQL.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import asyncpg
import pytest

from bench.kafka_parts import free_ports
from tests.servers.installed import build, install
from tests.servers.kafka import Broker
from tests.servers.postgres import PostgresServer
from tests.servers.process import RelayProcess
from tests.servers.valkey import ValkeyServer
from tests.tools.test_docker import CONFIGURED, DOCKER, OURS, ROOT, SECRETS, SERVICES, interpolated, stage

pytestmark = pytest.mark.kafka

EXTRAS: Final = ("email", "otel", "postgres", "zstd")
"""What requirements/image.txt is made with."""
TIMEOUT_S: Final = 60.0
GIVEN: Final = SECRETS | {"RECEIVERS_DIR": "./demo", "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8"}
"""docker/.env, as docker/README.md has it for the demo."""


class Image(NamedTuple):
    """What the image has, under `root` in place of `/`."""

    root: Path
    user: int | None

    @property
    def receivers(self) -> Path:
        """The mounted directory of receivers, which is not part of the image and may change."""
        return self.root / "etc/relay/receivers"

    def at(self, text: str) -> str:
        """`text` with the image's own paths as they are here."""
        return re.sub(r"(?<![\w/])/(?=opt/relay|etc/relay|tmp\b)", f"{self.root}/", text)

    def environment(self) -> dict[str, str]:
        lines = [one.text for one in stage(1) if one.name == "ENV"]
        pairs = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
        found = {name: self.at(value).replace("$PATH", "/usr/bin:/bin") for name, value in pairs.items()}
        return found | {"HOME": "/nonexistent", "TMPDIR": str(self.root / "tmp")}

    def written(self) -> dict[Path, tuple[int, int]]:
        """Time and size of each file outside the writable directories."""
        return {
            path: (found.st_mtime_ns, found.st_size)
            for path in self.root.rglob("*")
            if not {self.root / "tmp", self.receivers} & {path, *path.parents}
            for found in [path.lstat()]
        }

    def as_user(self) -> dict[str, Any]:
        """How a process is started as the image's user."""
        return {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": ()}


class Service(RelayProcess):
    """A service of compose.yaml, with the image's entry point, and no variable of this environment."""

    def __init__(self, image: Image, command: list[str], environ: dict[str, str]) -> None:
        super().__init__(*command, cwd=image.root / "etc/relay", environ=environ)
        self._image = image

    async def _start(self, environ: dict[str, str], stdin: int, output: int) -> asyncio.subprocess.Process:
        [entry] = [json.loads(one.text) for one in stage(1) if one.name == "ENTRYPOINT"]
        return await asyncio.create_subprocess_exec(
            self._image.root / "opt/relay/bin" / entry[0],
            *self._arguments,
            cwd=self._cwd,
            env=self._environ,
            stdin=stdin,
            stdout=output,
            stderr=output,
            **self._image.as_user(),
        )

    async def is_healthy(self) -> bool:
        """The result of the image's health check."""
        [check] = [one.text for one in stage(1) if one.name == "HEALTHCHECK"]
        program, *rest = json.loads(check[check.index("CMD") + 3 :])
        asking = await asyncio.create_subprocess_exec(
            self._image.root / "opt/relay/bin" / program,
            *rest,
            cwd=self._cwd,
            env=self._environ,
            stderr=asyncio.subprocess.DEVNULL,
            **self._image.as_user(),
        )
        return await asking.wait() == 0


def image_user(root: Path) -> int | None:
    """The image's user. None where we may not become that one, or it could not read this Python."""
    if os.geteuid() != 0:
        return None
    [text] = [one.text for one in stage(1) if one.name == "USER"]
    number = int(text.split(":")[0])
    command = [str(root / "opt/relay/bin/python"), "-c", "import relay, asyncpg"]
    try:
        done = subprocess.run(command, user=number, group=number, extra_groups=(), cwd="/", check=False)
    except PermissionError:
        return None
    return number if done.returncode == 0 else None


def system_python() -> str:
    """One of this version that every user may run, where there is one: that of a developer is often in their home."""
    found = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    return str(found) if found.exists() else sys.executable


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    root = Path(tempfile.mkdtemp(prefix="image-", dir="/tmp"))  # paths of sockets and of #! lines must be short
    try:
        root.chmod(0o755)
        install(build("wheel", ROOT, root / "dist"), root / "opt/relay", EXTRAS, system_python())
        for name in ("etc/relay/receivers", "tmp"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        made = Image(root, image_user(root))
        for directory in set(directories(root)) - {made.receivers, root / "tmp"}:
            directory.chmod(0o555)
        yield made
    finally:
        for directory in directories(root):
            directory.chmod(0o755)
        shutil.rmtree(root)


def directories(root: Path) -> list[Path]:
    return [root, *(each for each in root.rglob("*") if each.is_dir() and not each.is_symlink())]


@pytest.fixture
def valkey_port() -> Iterator[int]:
    """With the command line of compose.yaml."""
    program, *options = [interpolated(word, GIVEN) for word in SERVICES["redis"]["command"]]
    assert program == "valkey-server"
    (port,) = free_ports(1)
    server = ValkeyServer(port=port, options=tuple(options))
    server.start()
    yield port
    server.stop()


@pytest.fixture
async def postgres_port() -> AsyncIterator[int]:
    """With the user and the database of compose.yaml."""
    (port,) = free_ports(1)
    server = PostgresServer(options=("listen_addresses=127.0.0.1", f"port={port}"))
    await asyncio.to_thread(server.start)
    try:
        environment = SERVICES["postgres"]["environment"]
        user, name = environment["POSTGRES_USER"], environment["POSTGRES_DB"]
        connection = await asyncpg.connect(f"postgresql://{user}@127.0.0.1:{port}/postgres")
        await connection.execute(f'CREATE DATABASE "{name}"')
        await connection.close()
        yield port
    finally:
        await asyncio.to_thread(server.stop)


class Here(NamedTuple):
    """Where the other services are, on this machine instead of in compose's network."""

    names: dict[str, str]
    prefix: str

    def replaced(self, text: str) -> str:
        for name, address in self.names.items():
            text = text.replace(name, address)
        return text

    def environment(self, image: Image, name: str, port: int) -> dict[str, str]:
        told: dict[str, str] = CONFIGURED[name]["environment"]
        found = {key: image.at(self.replaced(interpolated(value, GIVEN))) for key, value in told.items()}
        ports = {key: str(port) for key in ("RELAY_METRICS_PORT", "RELAY_API_PORT") if key in found}
        here = {"RELAY_API_HOST": "127.0.0.1", "RELAY_TOPIC_PREFIX": self.prefix}
        return image.environment() | found | ports | here


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await look():
                return
            await asyncio.sleep(0.1)  # an API has no event to wait for


async def test_the_services_of_the_demo_carry_a_message_and_its_answer(
    image: Image, kafka_broker: Broker, valkey_port: int, postgres_port: int, unique_prefix: str
) -> None:
    ports = dict(zip(OURS, free_ports(len(OURS)), strict=True))
    here = Here(
        {
            "kafka:9092": kafka_broker.bootstrap,
            "@redis:6379": f"@127.0.0.1:{valkey_port}",
            "@postgres:5432": f"@127.0.0.1:{postgres_port}",
            "sink:9000": f"127.0.0.1:{ports['sink']}",
        },
        unique_prefix,
    )
    declared = here.replaced((DOCKER / GIVEN["RECEIVERS_DIR"] / "receivers.yaml").read_text())
    (image.receivers / "receivers.yaml").write_text(declared)
    before = image.written()

    def service(name: str) -> Service:
        command = [str(ports["sink"]) if word == "9000" else word for word in OURS[name]["command"]]
        command = ["127.0.0.1" if word == "0.0.0.0" else word for word in command]  # noqa: S104
        is_ours = name in CONFIGURED
        return Service(image, command, here.environment(image, name, ports[name]) if is_ours else image.environment())

    async with service("topics") as topics:
        output = await topics.finish()
    assert topics.returncode == 0, output

    api = f"http://127.0.0.1:{ports['api']}"
    key = {"authorization": f"Bearer {SECRETS['RELAY_API_KEY']}"}
    async with AsyncExitStack() as stack:
        running = {name: await stack.enter_async_context(service(name)) for name in OURS if name != "topics"}
        client = await stack.enter_async_context(aiohttp.ClientSession(api, headers=key))
        for name in running.keys() & CONFIGURED.keys():
            await running[name].line_with('"started"')
            assert await running[name].is_healthy(), name

        path = "/v1/sources/github/messages?wait=30"
        async with client.post(path, json={"n": 1}, headers={"webhook-id": "m-1"}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["relay-answer-status"] == "200"

        async def is_in_the_history() -> bool:
            async with client.get("/v1/messages", params={"source": "github"}) as response:
                assert response.status in (200, 503), await response.text()
                return "m-1" in await response.text()

        await until(is_in_the_history)

        edited = image.receivers / "edited"
        edited.write_text(declared.replace("\n  ci:", "\n  second:\n    post_endpoint: https://ci.example/\n  ci:", 1))
        edited.rename(image.receivers / "receivers.yaml")  # as an editor does it

        async def is_known() -> bool:
            async with client.get("/v1/receivers/second") as response:
                return response.status == 200

        await until(is_known)
        for one in running.values():
            one.signal(signal.SIGTERM)
        for name, one in running.items():
            output = await one.finish()
            assert one.returncode == 0, f"{name}: {output}"
    assert image.written() == before


async def test_the_demo_needs_no_more_than_a_place_for_temporary_files(image: Image) -> None:
    async with Service(image, ["demo"], image.environment()) as demo:
        output = await demo.finish()
    assert demo.returncode == 0, output
    assert "All results arrived" in output


def test_the_prefix_cannot_be_written_to_by_the_image_s_user(image: Image) -> None:
    """So that the test above shows what it says; root could write anywhere."""
    if image.user is None and os.geteuid() == 0:
        pytest.skip("this Python cannot be read by the image's user")
    python = str(image.root / "opt/relay/bin/python")
    for place in ("", "etc/relay", "opt/relay"):
        command = [python, "-c", f"open('{image.root / place}/new', 'w')"]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **image.as_user())
        assert "PermissionError" in done.stderr
