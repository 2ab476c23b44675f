"""The `relay` command with a bug: the lane of `to_sender` that gets the first record dies of it."""

from typing import Any

from relay.cli.main import main
from relay.engine.core import Lane

BUG = "a bug in the lane"


class _Bug(Exception):
    pass


def _plant() -> None:
    place = Lane._place

    def fail(self: Lane[Any], *arguments: Any) -> None:
        if self.partition.topic.endswith("to_sender"):
            raise _Bug(BUG)
        place(self, *arguments)

    Lane._place = fail  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    _plant()
    main()
