"""The table of all calls of a healthy message on the page of the architecture is that of the calls that are made."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from relay.api.intake import IncomingMessage, Intake
from relay.domain.message import message_headers
from relay.domain.receiver import Source
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

PAGE: Final = Path(__file__).parents[2] / "docs" / "architecture.md"
HEALTHY = message(2, "a", "r")


def calls_on_the_page() -> dict[int, str]:
    """By number; `append` and `commit` are those to Kafka."""
    table = PAGE.read_text().split("## All calls of a healthy message")[1].split("\n## ")[0]
    rows = "".join(line for line in table.splitlines() if line.startswith("|"))
    return {int(number): name for number, name in re.findall(r"(\d+)\. `?(\w+)", rows)}


async def _calls(*sources: Source, fresh: bool = False) -> list[str]:
    """Of the second message of a lane, as the first one has its offset reserved."""
    world, fuse, by_api = World([receiver("r", "/answer")], sources=sources), Fuse(), Fuse()
    await world.create()
    await world.send(message(1, "a", "r"))
    process = await Process(world, fuse).run(30)
    before = len(fuse.names)
    await Intake(await world.api_context(by_api)).take(
        "a", [IncomingMessage(HEALTHY, message_headers(HEALTHY), fresh=fresh)]
    )
    await process.ended(30)
    assert await world.is_at_rest()
    await process.stop()
    assert world.outside.arrived("/answer") == ["a-1", "a-2"]
    return [name.partition(".")[2] for name in (*by_api.names, *fuse.names[before:])]


def _sorted_by_step(names: Sequence[str]) -> list[str]:
    """Commits come some time after the call that they follow."""
    return [name for name in names if name != "commit"] + ["commit"] * names.count("commit")


def test_the_page_has_all_calls_of_a_healthy_message_in_their_order() -> None:
    page = calls_on_the_page()
    assert sorted(page) == list(range(1, len(page) + 1))
    expected = [page[number] for number in sorted(page)]
    made = _sorted_by_step(run_virtually(_calls()))
    assert made == _sorted_by_step(expected), "the table of calls in docs/architecture.md"


def test_an_id_made_by_the_api_is_not_looked_up() -> None:
    assert "messages" not in run_virtually(_calls(fresh=True))


def test_without_a_callback_the_last_step_only_commits() -> None:
    made = _sorted_by_step(run_virtually(_calls(Source("a"))))
    assert made[made.index("begin") :] == ["begin", "settle", "append", "mark", "commit", "commit", "commit"]
