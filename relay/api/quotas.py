"""Quotas: the messages of a request are charged to its key and its source, and the response has the balances.

The counts are in the state, so they hold over all processes. Requests without a quota cost nothing; for the others
there is one call for all requests of the same turn. While the state is away nothing is charged: messages matter more.
"""

import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from aiohttp import web

from relay.api.access import access_of
from relay.api.coalesce import Coalescer
from relay.api.context import ApiContext
from relay.api.origin_check import Refusals
from relay.api.problems import OVER_QUOTA, TOO_LARGE, Problem, busy
from relay.domain.errors import Unavailable
from relay.domain.receiver import Quota
from relay.state.port import Balance, Charge

_HEADERS: Final = web.RequestKey("quota_headers", dict[str, str])


class _AppliedQuota(NamedTuple):
    """A quota that holds for a request. `of`: its name to clients. `name`: whose it is, to the state. `part`:
    distinguishes several quotas of that name; empty if there is one."""

    of: str
    name: str
    part: str
    quota: Quota


class Quotas:
    """The quotas of keys and sources."""

    def __init__(self, context: ApiContext, refusals: Refusals) -> None:
        self._context = context
        self._refusals = refusals
        self._charge: Coalescer[Charge, Balance | None] = Coalescer(self._balances)

    async def charge(self, request: web.Request, source_id: str, messages: int = 1) -> None:
        """Count what `request` brings. Raises a Problem where it is too much: then nothing of it may be taken.

        The key comes first: one that has used up its own quota must not use up that of a source, which is others', too.
        """
        for held in self._held(request, source_id) if messages else ():
            if messages > held.quota.messages:
                raise self._never(request, held, messages)
            (balance,) = await self._charge([Charge(held.name, messages, held.quota)])
            if balance is None:
                continue
            _add_headers(request, held, balance)
            if not balance.granted:
                raise self._refused(request, held, balance, messages)

    def of_source(self, source_id: str) -> Quota | None:
        """The quota of a source: its own or the default."""
        quota = self._context.directory.source(source_id).quota or self._context.source_quota
        return None if quota == "none" else quota

    def _held(self, request: web.Request, source_id: str) -> Iterator[_AppliedQuota]:
        context = self._context
        key = access_of(request).key
        if context.key_quota is not None and key is not None:
            yield _AppliedQuota("key", f"k:{key}", "", context.key_quota)
        quota = self.of_source(source_id)
        if quota is not None:
            yield _AppliedQuota("source", f"s:{source_id}", source_id, quota)

    async def _balances(self, charges: Sequence[Charge]) -> Sequence[Balance | None]:
        try:
            return await self._context.state.charge(charges)
        except Unavailable:
            return [None] * len(charges)

    def _never(self, request: web.Request, held: _AppliedQuota, messages: int) -> Problem:
        self._note(request, held, messages)
        detail = (
            f"{messages} messages at once are more than the quota of this {held.of} admits in a window: send fewer."
        )
        return Problem(TOO_LARGE, detail, headers={"RateLimit-Policy": _policy(held)})

    def _refused(self, request: web.Request, held: _AppliedQuota, balance: Balance, messages: int) -> Problem:
        self._note(request, held, messages)
        quota, wait_s = held.quota, _whole(balance.ends_in_s)
        detail = (
            f"The quota of this {held.of}, {quota.messages} messages in {quota.window_s} s, "
            f"has room for {balance.left} more; the next window begins in {wait_s} s."
        )
        return busy(detail, OVER_QUOTA, wait_s)

    def _note(self, request: web.Request, held: _AppliedQuota, messages: int) -> None:
        self._context.meter.over_quota(held.of, messages)
        self._refusals.log("quota", request, of=held.of, quota=str(held.quota))


def quota_headers(request: web.Request) -> Mapping[str, str]:
    """Response headers about the quotas that were checked."""
    found: Mapping[str, str] = request.get(_HEADERS, {})
    return found


def _add_headers(request: web.Request, held: _AppliedQuota, balance: Balance) -> None:
    """Fields of draft-ietf-httpapi-ratelimit-headers-11. The unit of a quota is a message, of which a request may bring
    several; `pk` is the source_id."""
    headers = request.setdefault(_HEADERS, {})
    limit = f'"{held.of}";r={balance.left};t={_whole(balance.ends_in_s)}{_part(held)}'
    for name, text in (("RateLimit-Policy", _policy(held)), ("RateLimit", limit)):
        headers[name] = f"{headers[name]}, {text}" if name in headers else text


def _policy(held: _AppliedQuota) -> str:
    return f'"{held.of}";q={held.quota.messages};w={held.quota.window_s}{_part(held)}'


def _part(held: _AppliedQuota) -> str:
    return f";pk=:{b64encode(held.part.encode()).decode()}:" if held.part else ""


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
