"""The relay of a run: its settings, its receivers file, and its processes."""

import asyncio
import json
import os
import secrets
import signal
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench.cases import Case
from bench.children import Child
from bench.drawing import receiver_name
from bench.kafka_parts import free_ports
from bench.servers import finish
from bench.system import System
from relay.config.plan import HISTORY, ROLES

History = Literal["off", "log", "full"]
"""Parts of the history: no attempt is logged; attempts are logged; a process of its own beside the relay also reads
them into SQLite."""

_START_S: Final = 60.0
_START_OF_ONE_S: Final = 0.01
"""More for each receiver."""
_TOPICS_S: Final = "600"
"""For the topics of a thousand receivers, on a busy machine."""

_HELD_S: Final = 900
_RESTARTED: Final = '"process_ended"'
_SECRET: Final = "BENCH_SECRET"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class Backing:
    """The servers that a relay runs on, and the prefix of its topics and keys there."""

    kafka: str
    redis: str
    prefix: str


def receiver_urls(case: Case, ports: Sequence[int]) -> dict[str, str]:
    """By name; receiver number n is served by port n modulo their number."""
    names = [receiver_name(index) for index in range(case.receivers)]
    return {name: f"http://127.0.0.1:{ports[index % len(ports)]}/r/{name}" for index, name in enumerate(names)}


def receivers_file(case: Case, ports: Sequence[int]) -> dict[str, dict[str, object]]:
    """receivers.yaml for `case`.

    Where receivers fail, delays between attempts are short and attempts are many: no message is given up.
    """
    endpoint = {"secret": f"${{{_SECRET}}}", "max_in_flight": case.max_in_flight}
    if case.hold:
        endpoint["timeout"] = _HELD_S
    if case.batch:
        endpoint["batch"] = {"max_events": case.batch, "linger": 0.05}
    retry = {"retry": {"base": 0.2, "cap": 1.0, "max_attempts": 1000}} if case.failing else {}
    receivers: dict[str, object] = {
        name: endpoint | retry | {"post_endpoint": url, "lane": case.lane, "ordering": case.ordering}
        for name, url in receiver_urls(case, ports).items()
    }
    if not case.round_trip:
        return {"receivers": receivers}
    callback: object = endpoint | {"url": f"http://127.0.0.1:{ports[0]}/callback", "max_in_flight": 256}
    return {"sources": {"*": {"callback": callback}}, "receivers": receivers}


class RelayProcess(System):
    """`relay run` on Kafka and Redis, or `relay dev` when `backing` is None. Can be stopped and started again; see
    System."""

    name = "relay"

    def __init__(
        self,
        directory: Path,
        backing: Backing | None,
        entries: Mapping[str, Mapping[str, object]],
        *,
        processes: int | None,
        code: Path,
        profile: Path | None,
        max_requests: int | None = None,
        history: History = "log",
    ) -> None:
        self._directory = directory / "relay"
        self._directory.mkdir()
        self._backing = backing
        self._processes = processes if backing else 1
        self._code = code
        self._profile = profile
        self._max_requests = max_requests
        self._history = history
        self._start_s = _START_S + len(entries["receivers"]) * _START_OF_ONE_S
        (self._port,) = free_ports(1)
        self._starts = 0
        self._entries = entries
        self._declare({})
        self._environ = self._settings()
        self.children = []

    @property
    def topic(self) -> str:
        return f"{self._backing.prefix if self._backing else ''}from_sender"

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def make_topics(self) -> None:
        await finish(self.command("topics", "topics", "apply", RELAY_KAFKA_WAIT=_TOPICS_S))

    def command(self, name: str, *arguments: str, **settings: str) -> Child:
        """A command with the relay's settings, but for these, to be started. `name`: of its log file."""
        return Child(
            name, [sys.executable, "-m", "relay", *arguments], self._directory, environ=self._environ | settings
        )

    async def start(self) -> None:
        """Returns when each process says that it has started."""
        self._starts += 1
        name, each = f"relay-{self._starts}", 1
        if self._backing is None:
            arguments = ("--data-dir", "data", "--port", str(self._port), "--receivers", "receivers.yaml", "--no-demo")
            self.children = [self._child(name, "dev", *arguments)]
        elif self._profile is not None:
            # each is started on its own: those that `--processes` starts would not be profiled
            self.children = [
                self._child(f"{name}-{number}", "run", "--processes", "1") for number in range(self._processes or 1)
            ]
        else:
            told: tuple[str, ...] = ("--processes", str(self._processes)) if self._processes else ()
            if self._history == "full":  # whose process is nicer to others than one that also delivers may be
                told += ("--roles", ",".join(role for role in ROLES if role != HISTORY))
            self.children = [self._child(name, "run", *told)]
            each = self._processes or 1  # to begin with
        signs = dict.fromkeys(self.children, each)
        if self._history == "full":
            signs[self._child(f"{name}-history", "worker", "history")] = 1
        self.children = list(signs)
        for child in self.children:
            await child.start()
        for child, count in signs.items():
            sign = '"started"' if self._backing else "Ready"
            await child.until_logged(sign, count, self._start_s, unless=_RESTARTED)

    async def change(self, count: int, seconds: float) -> None:
        """While it runs: declares `count` receivers more, one after the other, and takes them back likewise."""
        spare = {f"spare-{number}": self._spare for number in range(count)}
        steps = [*range(1, count + 1), *reversed(range(count))]
        for declared in steps:
            self._declare(dict(list(spare.items())[:declared]))
            await asyncio.sleep(seconds / len(steps))

    @property
    def _spare(self) -> object:
        """Like the others, and nothing is sent to it."""
        return next(iter(self._entries["receivers"].values()))

    def _declare(self, more: Mapping[str, object]) -> None:
        """The receivers of the case, and some more. JSON is YAML."""
        path, written = self._directory / "receivers.yaml", self._directory / "receivers.new"
        written.write_text(json.dumps({**self._entries, "receivers": {**self._entries["receivers"], **more}}))
        written.replace(path)

    def check_whole(self) -> None:
        """Raises ChildFailed also when a process of `relay run` has ended and was started again."""
        super().check_whole()
        for child in self.children:
            if child.lines_with(_RESTARTED):
                raise child.failed("had to start a process again")

    def _child(self, name: str, *arguments: str) -> Child:
        profiled = []
        if self._profile is not None and arguments[0] in ("run", "dev"):
            self._profile.mkdir(parents=True, exist_ok=True)
            profiled = ["-m", "cProfile", "-o", str(self._profile.absolute() / f"{name}.prof")]
        command = [sys.executable, *profiled, "-m", "relay", *arguments]
        # on a signal, `relay run` also ends the processes that it has started
        return Child(name, command, self._directory, environ=self._environ, orphaned=signal.SIGTERM)

    def _settings(self) -> dict[str, str]:
        # a relay that is installed has its modules compiled: where they may not be, each start would do that again
        unwanted = "PYTHONDONTWRITEBYTECODE"
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("RELAY_") and name != unwanted
        }
        settings = clean | {
            "PYTHONPATH": str(self._code),
            "PYTHONPYCACHEPREFIX": str(self._directory.absolute() / "bytecode"),
            "PYTHONUNBUFFERED": "1",
            "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8",
            "RELAY_API_PORT": str(self._port),
            "RELAY_LOG_FORMAT": "json",
            "RELAY_RECEIVERS_FILE": "receivers.yaml",
            _SECRET: "whsec_" + b64encode(secrets.token_bytes(32)).decode(),
        }
        settings["XDG_DATA_HOME"] = os.devnull  # no place for a history that was not asked for
        if self._history == "off":  # otherwise the default: a former revision knows no such setting
            settings["RELAY_ATTEMPT_LOG"] = "0"
        if self._history == "full":
            settings["RELAY_HISTORY_URL"] = f"sqlite://{self._directory.absolute() / 'history.db'}"
        if self._max_requests is not None:
            settings["RELAY_MAX_REQUESTS"] = str(self._max_requests)
        if self._backing:
            settings |= {
                "RELAY_KAFKA_BOOTSTRAP_SERVERS": self._backing.kafka,
                "RELAY_REDIS_URL": self._backing.redis,
                "RELAY_TOPIC_PREFIX": self._backing.prefix,
            }
        return settings
