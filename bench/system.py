"""The measured system: the relay, or the plain pipeline beside it."""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar

from bench.children import Child


class System(ABC):
    """One of the two, on the servers and receivers of a rig. Can be stopped and started again."""

    name: ClassVar[str]
    """Of its processes in a report."""
    children: list[Child]
    """Its processes."""

    @property
    @abstractmethod
    def topic(self) -> str:
        """Where messages for it go."""

    @abstractmethod
    async def start(self) -> None:
        """Returns when all of it runs. Raises ChildFailed."""

    @property
    def pids(self) -> list[int]:
        """Of the processes started here, while they run; others descend from them."""
        return [child.pid for child in self.children if not child.ended]

    async def stop(self) -> None:
        children, self.children = self.children, []
        await asyncio.gather(*(child.stop() for child in children))

    def check(self) -> None:
        """Raises ChildFailed when it has ended unexpectedly."""
        for child in self.children:
            if child.ended:
                raise child.failed("ended by itself")

    def check_whole(self) -> None:
        """Raises ChildFailed also when a part of it has ended and was started again."""
        self.check()
