"""The other processes of the same `relay run`: each answers monitoring on a unix socket in a directory of their own."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import ClientError, ClientSession, UnixConnector

from relay.config.process_count import begun
from relay.telemetry.merge import counts_of

PATIENCE_S: Final = 1.0
"""For all the others together. Probes and scrapes give up after a few seconds, and one that hangs must not hang all."""


@dataclass(frozen=True, slots=True)
class GroupProcess:
    """This process's place in its group: `index`, 0-based, of at most `count`. `directory`: for this user only."""

    index: int
    count: int
    directory: Path

    @property
    def socket(self) -> Path:
        return self.socket_of(self.index)

    @property
    def others(self) -> list[int]:
        """The other processes that should be running."""
        return [index for index in range(self._begun) if index != self.index]

    @property
    def is_dismissed(self) -> bool:
        """Whether this one stops while the others go on."""
        return self.index >= self._begun

    @property
    def leaving(self) -> list[int]:
        """Others that have been dismissed, and may still be finishing their requests."""
        dismissed = range(self._begun, self.count)
        return [index for index in dismissed if index != self.index and self.socket_of(index).exists()]

    @property
    def _begun(self) -> int:
        """How many should be running: at least those up to this one, if a cleaner of temporary files removed the
        number."""
        try:
            return begun(self.directory)
        except FileNotFoundError:
            return self.index + 1

    def socket_of(self, index: int) -> Path:
        return self.directory / f"{index}.sock"

    def counts_of(self, index: int) -> Path:
        """The file with the counters of the former lives of a process."""
        return self.directory / f"{index}.counts"

    def seen_of(self, index: int) -> Path:
        """The file with the metrics of a process that were read last."""
        return self.directory / f"{index}.seen"


def leave_counts(member: GroupProcess, metrics: bytes) -> None:
    """Keep the counters of a process that ends, if its directory can be written: without them the sums of the group
    would fall. `metrics`: its own."""
    file = member.counts_of(member.index)
    with suppress(OSError):
        before = [file.read_text()] if file.exists() else []
        _write(file, counts_of(metrics.decode(), *before), ".new")
        member.seen_of(member.index).unlink(missing_ok=True)


def leave_counts_of_killed(member: GroupProcess) -> None:
    """Keep the counters of a former life of this process that was killed, as they were read last."""
    with suppress(OSError):
        leave_counts(member, member.seen_of(member.index).read_bytes())


def _write(file: Path, content: bytes, suffix: str) -> None:
    fresh = file.with_suffix(suffix)
    fresh.write_bytes(content)
    fresh.replace(file)


@dataclass(frozen=True, slots=True)
class PeerResponse:
    """The response of another process."""

    status: int
    text: str


class Peers:
    """Asks the others of a group."""

    def __init__(self, member: GroupProcess) -> None:
        self._member = member

    @property
    def own_index(self) -> int:
        return self._member.index

    def left_counts(self, answered: Mapping[int, str]) -> list[str]:
        """Counters of processes that have ended, and of those that do not answer, as they were read last: without them
        the sums would fall, which Prometheus takes for a restart, after which all of it is new. `answered`: the
        metrics of the others, by index."""
        member = self._member
        for index, text in answered.items():
            with suppress(OSError):
                _write(member.seen_of(index), text.encode(), f".seen{self.own_index}")
        silent = [index for index in range(member.count) if index not in answered and index != self.own_index]
        files = [*map(member.counts_of, range(member.count)), *map(member.seen_of, silent)]
        return [file.read_text() for file in files if file.exists()]

    async def ask(self, path: str, *, leaving: bool = False) -> dict[int, PeerResponse | None]:
        """The responses of all other processes to a GET of `path`; None for those that do not answer within PATIENCE_S.
        `leaving`: include processes that are stopping, if they still answer."""
        others = self._member.others
        asked = [*others, *(self._member.leaving if leaving else ())]
        async with asyncio.TaskGroup() as tasks:
            asking = {index: tasks.create_task(_ask(self._member.socket_of(index), path)) for index in asked}
        replies = {index: task.result() for index, task in asking.items()}
        return {index: reply for index, reply in replies.items() if reply is not None or index in others}


async def _ask(socket: Path, path: str) -> PeerResponse | None:
    # Not kept open: a scrape comes every few seconds, and a process that was started again has a socket of its own.
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            ClientSession(connector=UnixConnector(str(socket))) as session,
            session.get(f"http://process{path}") as response,
        ):
            return PeerResponse(response.status, await response.text())
    except (TimeoutError, ClientError, OSError):
        return None
