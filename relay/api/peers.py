"""The other processes of the same `relay run`: each answers monitoring on a unix socket in a directory of their own."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import ClientError, ClientSession, UnixConnector

from relay.config.process_count import begun

PATIENCE_S: Final = 1.0
"""For all the others together. Probes and scrapes give up after a few seconds, and one that hangs must not hang all."""


@dataclass(frozen=True, slots=True)
class GroupProcess:
    """Which process of a group this is: `index`, 0-based, of at most `count`. `directory`: for this user only."""

    index: int
    count: int
    directory: Path

    @property
    def socket(self) -> Path:
        return self.socket_of(self.index)

    @property
    def others(self) -> list[int]:
        """Those that have been asked for by now."""
        return [index for index in range(begun(self.directory)) if index != self.index]

    def socket_of(self, index: int) -> Path:
        return self.directory / f"{index}.sock"


@dataclass(frozen=True, slots=True)
class PeerResponse:
    """What a process answered."""

    status: int
    text: str


class Peers:
    """Asks the others of a group."""

    def __init__(self, member: GroupProcess) -> None:
        self._member = member

    @property
    def own_index(self) -> int:
        return self._member.index

    async def ask(self, path: str) -> dict[int, PeerResponse | None]:
        """What each of the others answers to a GET of `path`; None for those that do not within PATIENCE_S."""
        async with asyncio.TaskGroup() as tasks:
            asking = {
                index: tasks.create_task(_ask(self._member.socket_of(index), path)) for index in self._member.others
            }
        return {index: task.result() for index, task in asking.items()}


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
