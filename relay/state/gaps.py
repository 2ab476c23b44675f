"""Whether rows may be missing because the state lost its memory, and has not read all of them back from the log."""

from collections.abc import Iterable

from relay.domain.errors import StateUnavailable
from relay.state.port import State
from relay.state.rows import tag_of


async def has_gap(state: State, owners: Iterable[str]) -> bool:
    """Whether finished rows of one of these may be missing. `owners`: `r:<receiver>` or `s:<source_id>`."""
    tags = sorted(set(map(tag_of, owners)))
    return bool(tags and await state.gaps(tags))


async def check_no_gap(state: State, owners: Iterable[str]) -> None:
    """Raises StateUnavailable while finished rows of one of these may be missing."""
    if await has_gap(state, owners):
        raise StateUnavailable("the rows of finished messages were lost, and are being rebuilt from the log")
