"""What is measured: the relay, or the plain pipeline beside it."""

from typing import Protocol


class System(Protocol):
    """One of the two, on the servers and receivers of a rig. Can be stopped and started again."""

    @property
    def name(self) -> str:
        """Of its processes in a report."""
        ...

    @property
    def topic(self) -> str:
        """Where messages for it go."""
        ...

    @property
    def pids(self) -> list[int]:
        """Of the processes started here, as far as they run; others descend from them."""
        ...

    async def start(self) -> None:
        """Returns when all of it runs. Raises ChildFailed."""
        ...

    async def stop(self) -> None: ...

    def check(self) -> None:
        """Raises ChildFailed when it has ended by itself."""
        ...

    def check_whole(self) -> None:
        """Raises ChildFailed also when a part of it has ended and was started again."""
        ...
