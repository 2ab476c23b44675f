"""Checks that `relay run` makes before it connects; `relay config check` makes them, too."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from relay.config.limits import raise_descriptor_limit
from relay.config.own_address import Exposed, check_exposure, check_key
from relay.config.plan import API, HISTORY, ROLES
from relay.config.problems import raise_all
from relay.config.settings import Settings
from relay.control.keys import read_keys
from relay.domain.errors import LogUnavailable, UserError
from relay.domain.topics import Topics

LOOK_S: Final = 30.0


def roles_of(text: str | None) -> frozenset[str]:
    """The roles of `--roles`; all without it. Raises UserError."""
    found = names(text, ROLES, "--roles")
    return frozenset(ROLES) if found is None else found


def check_history(settings: Settings, text: str | None) -> None:
    """Raises UserError if the role is named and there is no history to fill."""
    if HISTORY in (names(text, ROLES, "--roles") or ()) and settings.history_url is None:
        raise UserError(
            "the role history needs RELAY_HISTORY_URL: sqlite:///absolute/path/history.db, or postgresql://..."
        )


def names(text: str | None, allowed: tuple[str, ...] | None, what: str) -> frozenset[str] | None:
    """A comma-separated list of names; None where it was not given. Raises UserError for one that is not allowed, and
    for a list of none."""
    if text is None:
        return None
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise UserError(f"{what}: {text!r} names none; leave the option out for all")
    for name in sorted(found):
        if allowed is not None and name not in allowed:
            raise UserError(f"{what}: {name!r} is none of {', '.join(allowed)}")
    return found


def check_api(settings: Settings, roles: Collection[str]) -> None:
    """Raises UserError if the API would be open to strangers."""
    raise_all(asyncio.run(_refusals(settings, _api_checks(roles))))


def refusals_at_start(settings: Settings, roles: Collection[str]) -> list[str]:
    """All reasons why a process with these roles would not start; empty if it would connect."""
    raise_descriptor_limit()  # as it does, before it counts what it may have
    return asyncio.run(_refusals(settings, (*_api_checks(roles), *_parts(roles))))  # the clients want a loop


async def unmakeable(settings: Settings, roles: Collection[str]) -> list[str]:
    """Why no process can start with these settings, apart from the exposure of its API."""
    return await _refusals(settings, _parts(roles))


async def _refusals(settings: Settings, checks: Iterable[Callable[[Settings], object]]) -> list[str]:
    found: list[str] = []
    for check in checks:
        try:
            check(settings)
        except UserError as error:
            if not (isinstance(error, Exposed) and await is_key_made(settings)):
                found += str(error).splitlines()
    return found


async def is_key_made(settings: Settings) -> bool:
    """Whether the log has a valid key of the API; also False if it does not answer soon."""
    from relay.run.composition import open_log  # its imports take time, which few commands need

    try:
        async with asyncio.timeout(LOOK_S), open_log(settings) as log:
            keys = await read_keys(log, Topics(settings.topic_prefix).receiver_config)
    except (LogUnavailable, TimeoutError):
        return False
    return keys.any_good(time.time())


def _api_checks(roles: Collection[str]) -> Iterator[Callable[[Settings], None]]:
    yield check_key
    if API in roles:
        yield check_exposure


def _parts(roles: Collection[str]) -> Iterator[Callable[[Settings], object]]:
    """Makes what a process makes of the settings when it starts. Raises UserError if that is impossible."""
    # their imports take their time, which the other commands do without
    from relay.api.batch import largest_body
    from relay.config.limits import limits_of
    from relay.delivery.egress import requests_of, transport_of
    from relay.pages.portal_strings import read_strings
    from relay.run.composition import kafka_log, redis_state
    from relay.run.notices import recipients_of

    yield kafka_log
    yield redis_state
    yield requests_of
    yield lambda settings: recipients_of(settings, transport_of(settings, 1))
    yield _sentry
    if API in roles:
        yield lambda settings: limits_of(settings, largest_body(settings.max_payload_bytes))
        yield lambda settings: read_strings(settings.portal_strings)


def _sentry(settings: Settings) -> None:
    from relay.telemetry.sentry import check_dsn

    if settings.sentry_dsn is not None:
        check_dsn(settings.sentry_dsn.get_secret_value())
