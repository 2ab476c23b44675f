"""Planted bugs in the limits of requests in flight, waits and parking; see `planted`."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any
from unittest.mock import patch

from msgspec import structs

import relay.state.redis.calls
from relay.engine import attempt, parking, settlement
from relay.engine.lane import Lane
from relay.engine.parked_index import ParkedKeys
from relay.engine.parked_quota import ParkingQuota
from relay.engine.work import is_behind
from relay.state.attempts import BeginRequest, Limits
from relay.state.redis.calls import Script, script
from tests.fakes.state_endpoint import Endpoint
from workers import tables


@contextmanager
def changed_script(name: str, *changes: tuple[bytes, bytes]) -> Iterator[None]:
    """Changes a script that this process has Redis run. Raises AssertionError if the script has no such place."""
    source = script(name).source
    for rightly, wrongly in changes:
        if rightly not in source:
            raise AssertionError(f"the script {name} has changed: this bug is not planted any more")
        source = source.replace(rightly, wrongly)
    wrong = Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())

    with patch.object(relay.state.redis.calls, "script", lambda asked: wrong if asked == name else script(asked)):
        yield


@contextmanager
def places_not_kept() -> Iterator[None]:
    """Any lane may begin a request, however many are in flight. A rule of the state itself, as above."""

    def take_place(self: Endpoint, now: float, lane: str, token: bytes, limits: Limits) -> bool:
        return True

    with (
        patch.object(Endpoint, "take_place", take_place),
        changed_script("begin", (b"+ #names > most", b"+ #names > 1e9"), (b"/ PLACE < most", b"/ PLACE < 1e9")),
    ):
        yield


@contextmanager
def missed_slots_made_up_for() -> Iterator[None]:
    """A request starts although its slot of the rate has passed, as long as its begin counts."""
    with patch.object(attempt, "slot_by", lambda lane, start_in_s: inf):
        yield


@contextmanager
def seen_parked_before_unseen() -> Iterator[None]:
    """A work that was looked up is parked before an earlier one of its order key that has to be looked up first, and is
    sent first, as a parked one does not see those parked before it."""
    with (
        patch.object(ParkedKeys, "looks_up_before", lambda _keys, _work: False),
        patch.object(tables, "is_behind", lambda work, row: work.parked_at is None and is_behind(work, row)),
    ):
        yield


@contextmanager
def parked_without_bounds() -> Iterator[None]:
    """The limit of parked records does not apply."""

    async def refusals(self: ParkingQuota, lane: object, works: Sequence[object]) -> list[None]:
        return [None] * len(works)

    with patch.object(ParkingQuota, "refusals", refusals):
        yield


@contextmanager
def patience_forgotten() -> Iterator[None]:
    """A message that keeps failing blocks its order key until it ends: `patience` does not apply."""

    def left_s(work: object, now: float) -> float:
        return inf

    with patch.object(parking, "patience_left_s", left_s), patch.object(settlement, "patience_left_s", left_s):
        yield


@contextmanager
def offline_until_the_next_ping() -> Iterator[None]:
    """A process that has just taken a lane over waits with the ping of an offline receiver as its owner before did."""

    def asks(lane: Lane[Any], works: Sequence[Any], now: float) -> list[BeginRequest]:
        return [structs.replace(one, open_s=inf) for one in rightly(lane, works, now)]

    rightly = attempt.begin_requests
    with patch.object(attempt, "begin_requests", asks):
        yield


PLANTED_IN_BOUNDS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (
        places_not_kept,
        missed_slots_made_up_for,
        seen_parked_before_unseen,
        parked_without_bounds,
        patience_forgotten,
        offline_until_the_next_ping,
    )
}
