"""The whole relay in one process, on a private Valkey server in a data directory. Same workers, same semantics."""

import asyncio
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pydantic import ByteSize, SecretStr

from relay.clock import SystemClock
from relay.config.own_address import answer_secrets
from relay.config.plan import ProcessPlan
from relay.config.receivers_file import ReceiversFile
from relay.config.settings import Settings
from relay.control.keys import read_keys
from relay.domain.errors import LogUnavailable, RelayError, UserError
from relay.domain.topics import Topics
from relay.embedded.directory import check_form, write_api_url
from relay.embedded.memory import MemoryWatch
from relay.embedded.valkey import ROOM, ValkeyServer
from relay.log.streams.log import StreamsLog, largest_record
from relay.log.streams.store import StreamStore
from relay.run.process import RelayProcess
from relay.run.supervisor import next_pause
from relay.state.redis.state import RedisState
from relay.telemetry.logging import get_logger

LOG_DB, STATE_DB = 0, 1
"""Separate, so that a loss of the state can be tested."""
SECRET_BYTES: Final = 32
KEPT_BODY: Final = 65_536
"""Bytes of each body that its history keeps."""
MIB: Final = 1024**2
DISK_LOOK_S: Final = 1.0
PING_EVERY_S: Final = 2.0
"""A receiver that was just started on this machine gets its backlog at once."""
LOOPBACK: Final = tuple(ip_network(text) for text in ("127.0.0.0/8", "::1/128"))

Started = Callable[[RelayProcess], Coroutine[Any, Any, None]]

_log = get_logger("relay.process")


@dataclass(eq=False, repr=False)
class EmbeddedRelay:
    """A relay on the engine in `data_dir`. `extra` adds entries to those of the receivers file; `logs_attempts` and
    `own_key` as in `ProcessPlan`. `exposed`: the error to raise if no key of the API exists.

    Raises UserError if another process has the directory.
    """

    settings: Settings
    data_dir: Path
    extra: Callable[[ReceiversFile | None], ReceiversFile | None]
    environ: Mapping[str, str]
    logs_attempts: Callable[[str], bool] = lambda _endpoint_id: False
    _: KW_ONLY
    own_key: str | None = None
    exposed: UserError | None = None
    relay: RelayProcess | None = None

    def __post_init__(self) -> None:
        self.server = ValkeyServer(self.data_dir)
        self.settings = local(self.settings)

    async def run(self, stop: asyncio.Event, started: Started) -> None:
        """Until `stop`. `started` is awaited, beside the running relay, once it serves."""
        await self.server.start()
        try:
            check_form(self.data_dir)
            try:
                await self._create_topics()
            except LogUnavailable as error:
                raise RelayError(f"{error}; see {self.server.log_file} and start again") from error
            async with asyncio.TaskGroup() as tasks:
                watches = (self._watch_server(stop), self._watch_directory(), self._watch_memory().run())
                watching = [tasks.create_task(work) for work in watches]
                await self._run_relay(stop, started)
                for each in watching:
                    each.cancel()
        finally:
            write_api_url(self.data_dir, None)
            await self.server.stop()

    async def _run_relay(self, stop: asyncio.Event, started: Started) -> None:
        kept = stored_secret(self.data_dir / "answer_secret")  # also verifies what it signed before there was a setting
        key = stored_secret(self.data_dir / "secrets_key")
        plan = ProcessPlan(
            with_entries=self.extra,
            answer_secrets=(*answer_secrets(self.settings), kept),
            secrets_keys=(key,),
            logs_attempts=self.logs_attempts,
            own_key=self.own_key,
            data_dir=self.data_dir,
            ping_every=PING_EVERY_S,
        )
        log, state = self._open_log(), embedded_state(self.settings, self.server)
        self.relay = relay = RelayProcess(
            with_history(self.settings, self.data_dir), log, state, plan, self.environ, SystemClock()
        )
        serving = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(relay.run(stop, serving.set))
            up = tasks.create_task(serving.wait())
            await asyncio.wait((running, up), return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            if serving.is_set():
                write_api_url(self.data_dir, relay.api_url)
                announced = tasks.create_task(started(relay))
                await asyncio.wait((running, announced), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    announced.cancel()

    async def _create_topics(self) -> None:
        topics, log = Topics(self.settings.topic_prefix), self._open_log()
        await log.start()
        try:
            await log.create(topics.fixed(), topics.fixed_groups() | topics.informational_groups())
            if self.exposed is not None:
                keys = await read_keys(log, topics.receiver_config)
                if not keys.any_good(SystemClock().time()):
                    raise self.exposed
        finally:
            await log.close()

    async def _watch_server(self, stop: asyncio.Event) -> None:
        """Restarts the server when it has exited: it does so when it cannot write, and waits for room then; or it was
        killed, or has crashed. What was acknowledged is on the disk. Raises UserError if it cannot be started."""
        loop, pause_s = asyncio.get_running_loop(), 0.0
        while True:
            began = loop.time()
            await self.server.exited.wait()
            if stop.is_set():
                return
            self.server.check_directory()
            if self.server.lacked_room:
                await self._until_there_is_room()
            else:
                pause_s = next_pause(pause_s, loop.time() - began)
                said = self.server.last_line()
                _log.warning("server_exited", log=str(self.server.log_file), said=said, pause_s=pause_s)
                await asyncio.sleep(pause_s)
            try:
                await self.server.start()
            except UserError:
                if not self.server.lacked_room:  # full again already: its log says so, too
                    raise
            else:
                self._report_disk(None)

    async def _watch_directory(self) -> None:
        """Raises RelayError when it is moved or removed: nothing that the relay accepts then would be found again."""
        while True:
            self.server.check_directory()
            await asyncio.sleep(DISK_LOOK_S)

    async def _until_there_is_room(self) -> None:
        free = shutil.disk_usage(self.data_dir).free
        needed = free + ROOM
        why = f"the disk of {self.data_dir} is full: {free // MIB} MiB are free, {needed // MIB} MiB are needed"
        if free >= ROOM and not self.server.has_room:
            needed = ROOM
            why = f"the disk quota for {self.data_dir} is used up: {ROOM // MIB} MiB more are needed"
        _log.warning("disk_full", directory=str(self.data_dir), free_bytes=free, needed_bytes=needed)
        self._report_disk(why)
        # no event reports free space
        while shutil.disk_usage(self.data_dir).free < needed or not self.server.has_room:  # noqa: ASYNC110
            await asyncio.sleep(DISK_LOOK_S)
        _log.info("disk_has_room", directory=str(self.data_dir))

    def _report_disk(self, why: str | None) -> None:
        if self.relay is not None:
            self.relay.report("disk", why)

    def _watch_memory(self) -> MemoryWatch:
        topics = Topics(self.settings.topic_prefix)
        store = StreamStore(self.server.url(LOG_DB), topics.prefix)
        return MemoryWatch(store, {topics.failed_messages, topics.audit})

    def _open_log(self) -> StreamsLog:
        groups = Topics(self.settings.topic_prefix).informational_groups()
        return streams_log(self.settings, self.server, passed=set(groups.values()))


def streams_log(settings: Settings, server: ValkeyServer, *, passed: Collection[str] = ()) -> StreamsLog:
    """The log on the embedded server, not yet started. `passed`: see StreamsLog."""
    largest = largest_record(settings.max_payload_bytes)
    return StreamsLog(server.url(LOG_DB), prefix=settings.topic_prefix, max_message_bytes=largest, passed=passed)


def embedded_state(settings: Settings, server: ValkeyServer) -> RedisState:
    """The state on the embedded server, not yet started."""
    prefix, window_s = settings.topic_prefix, settings.dedup_window
    return RedisState(server.url(STATE_DB), prefix=prefix, dedup_window_s=window_s)


def local(settings: Settings) -> Settings:
    """The settings, with this machine's own addresses allowed, and reached without any proxy."""
    allowed = (*settings.allow_private_networks, *LOOPBACK)
    direct = (*settings.no_proxy, "localhost", *map(str, LOOPBACK))
    return settings.model_copy(update={"allow_private_networks": allowed, "no_proxy": direct})


def with_history(settings: Settings, data_dir: Path) -> Settings:
    """The settings, with a history in the data directory and small bodies, unless others are configured."""
    own: dict[str, object] = {}
    if settings.history_url is None:
        own["history_url"] = SecretStr(f"sqlite://{quote(str(data_dir.resolve() / 'history.db'))}")
    if "history_bodies" not in settings.model_fields_set:
        own["history_bodies"] = ByteSize(KEPT_BODY)
    return settings.model_copy(update=own)


def stored_secret(path: Path) -> bytes:
    """32 random bytes that survive a restart, readable by their owner only.

    Complete or missing, also after a crash: with an empty key any client could sign. Raises UserError if it is longer.
    """
    with suppress(FileNotFoundError):
        kept = path.read_bytes()
        if len(kept) == SECRET_BYTES:
            return kept
        if len(kept) > SECRET_BYTES:  # perhaps the key as text, which only the user can have written
            raise UserError(
                f"{path}: it has {len(kept)} bytes instead of {SECRET_BYTES}: decode it if it is base64 (base64 -d),"
                " or remove the file, for a new secret"
            )
    fresh, written = secrets.token_bytes(SECRET_BYTES), path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(fresh)
        os.fsync(file.fileno())
    written.replace(path)
    return fresh


def with_entries(file: ReceiversFile | None, added: ReceiversFile) -> ReceiversFile:
    """`file`, and the entries of `added` that it does not declare."""
    if file is None:
        return added
    return replace(
        file,
        receivers={**added.receivers, **file.receivers},
        sources={**added.sources, **file.sources},
    )


def free_port(host: str, wanted: int) -> int:
    """`wanted`, if it is free; else 0, which lets the system choose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError:
            return 0
    return wanted
