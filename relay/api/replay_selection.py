"""The dead letters that the body of a replay, discard or cancel selects. Its fields are documented in
relay/schema/replays.py and checked here, which has better words for it than the decoder."""

from math import isfinite
from typing import TypeVar, get_args

from relay.api.problems import invalid
from relay.domain.errors import InvalidRecord
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import check_id, is_receiver_name
from relay.domain.reasons import REASONS
from relay.domain.replay_job import Selection, Stage
from relay.domain.times import parse_past
from relay.schema.replays import MOST_VALUES, RATES, Discards, Replays, Texts


def selection_of(asked: Discards, now: float) -> Selection:
    """The selection of dead letters in a request. `now`: Unix seconds. Raises a Problem."""
    since_ms, until_ms = _moment(asked.since, "since", now), _moment(asked.until, "until", now)
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise invalid("until is not after since", pointer="/until")
    statuses = _list(asked.status, "status")
    for n, status in enumerate(statuses):
        if not 100 <= status <= 599:
            raise invalid(f"{status} is not an HTTP status", pointer=_at("status", asked.status, n))
    return Selection(
        receivers=_texts(asked.receiver, "receiver"),
        sources=_texts(asked.source, "source"),
        reasons=_texts(asked.reason, "reason"),
        statuses=frozenset(statuses),
        stages=_texts(asked.stage, "stage"),
        ids=_texts(asked.ids, "ids"),
        since_ms=since_ms,
        until_ms=until_ms,
    )


def check_rate(rate: float | None) -> None:
    """Raises a Problem."""
    if rate is not None and not (isfinite(rate) and RATES[0] <= rate <= RATES[1]):
        raise invalid(f"rate is {rate}; from {RATES[0]} to {RATES[1]:.0f} a second are allowed", pointer="/rate")


def check_delivered(asked: Replays) -> None:
    """Raises a Problem if delivered messages are selected by properties that only dead letters have, such as a
    reason."""
    for name in ("reason", "status", "stage"):
        if not asked.only_failed and getattr(asked, name) is not None:
            detail = f"{name} chooses dead letters: with it, only_failed has to be true"
            raise invalid(detail, pointer="/only_failed")


def _texts(value: Texts, name: str) -> frozenset[str]:
    found = _list(value, name)
    for n, text in enumerate(found):
        if (problem := _wrong(name, text)) is not None:
            raise invalid(problem, pointer=_at(name, value, n))
    return frozenset(found)


def _wrong(name: str, text: str) -> str | None:
    match name:
        case "receiver":
            right = text == NO_RECEIVER or is_receiver_name(text)
            return None if right else f"{text[:80]!r} is not a receiver name"
        case "reason":
            return None if text in REASONS else f"{text[:80]!r} is no reason; there are {', '.join(REASONS)}"
        case "stage":
            known = get_args(Stage)
            return None if text in known else f"{text[:80]!r} is no stage; there are {', '.join(known)}"
    try:
        check_id(text, name)
    except InvalidRecord as error:
        return error.detail
    return None


V = TypeVar("V", str, int)


def _list(value: V | list[V] | None, name: str) -> list[V]:
    if value is None:
        return []
    found = value if isinstance(value, list) else [value]
    if not found:
        raise invalid(f"{name} is an empty list, which selects nothing; leave it out for all", pointer=f"/{name}")
    if len(found) > MOST_VALUES:
        raise invalid(f"{name} has {len(found)} values; {MOST_VALUES} are allowed", pointer=f"/{name}")
    return found


def _at(name: str, value: object, n: int) -> str:
    return f"/{name}/{n}" if isinstance(value, list) else f"/{name}"


def _moment(value: str | float | None, name: str, now: float) -> int | None:
    """Unix milliseconds."""
    if value is None:
        return None
    try:
        seconds = value if isinstance(value, int | float) else parse_past(value, now)
        if not isfinite(seconds) or not 0 <= seconds < 1e11:
            raise ValueError
        return int(seconds * 1000)
    except (ValueError, OverflowError):
        allowed = "RFC 3339 (2026-01-31T12:00:00Z), Unix seconds, or how long ago (90m, 2h, 1d)"
        raise invalid(f"{name} is {str(value)[:40]!r}, not a time: give {allowed}", pointer=f"/{name}") from None
