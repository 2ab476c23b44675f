"""Checks the rights of this process's user on the log at start, so that a missing right is named, instead of failing
the first message that needs it."""

from collections.abc import Collection

from relay.domain.errors import UserError
from relay.domain.rights import API, Right, rights_of
from relay.domain.topics import Topics
from relay.log.port import Log
from relay.telemetry.logging import get_logger

_SHARED_WORK = "moves, replays, rebuilding, the backlog watch, and applying the receivers file"

_log = get_logger("relay.process")


async def check_rights(log: Log, topics: Topics, roles: Collection[str]) -> bool:
    """Refuse to start if a role could not do its work. Raises UserError and LogUnavailable.

    Returns whether the process may also do the jobs that one process does for all: these need the rights of the API.
    """
    lacking = await log.lacking(rights_of(topics, roles))
    refuse([right for each in lacking if (right := each.at_once(topics))], roles)
    for line in lines(lacking, roles):
        _log.warning("right_missing", problem=line)
    keeps = not any(each.at_once(topics) for each in await log.lacking(rights_of(topics, [API])))
    if not keeps:
        _log.info("shared_work_left", what=_SHARED_WORK, to="processes whose user has the rights of the API")
    return keeps


def refuse(lacking: Collection[Right], roles: Collection[str]) -> None:
    """Raises UserError with a line for each topic or group."""
    if lacking:
        raise UserError("\n".join(lines(lacking, roles)))


def lines(lacking: Collection[Right], roles: Collection[str]) -> list[str]:
    """The missing rights, a line each, with the command that prints how to grant them."""
    of_one = "".join(f" --role {role}" for role in roles) if len(roles) == 1 else ""
    return [
        f"Kafka: this user may not {', '.join(each.operations)} on {each.kind} {each.probe}; "
        f"`relay rights{of_one}` prints the commands that allow it"
        for each in lacking
    ]
