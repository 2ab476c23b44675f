"""Verifies that receivers want the messages sent to their URLs: pending ones by one process at a time, under a
lease, and any receiver at once on request. The result is a record on `receiver_config`."""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from relay.clock import Clock
from relay.control.registry import Registry
from relay.delivery.port import Transport
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.errors import NotYet, Unavailable
from relay.domain.identity import base64url
from relay.domain.receiver import Receiver
from relay.domain.topics import Topics
from relay.domain.verification import (
    TIMEOUT_S,
    HandshakeResult,
    Verdict,
    failed,
    handshake,
    handshake_of,
    is_proof,
    next_try,
)
from relay.log.port import Log, NewRecord
from relay.state.lease import LEASE_S, keeping_lease
from relay.state.port import State
from relay.telemetry.logging import get_logger

LEASE: Final = "verifications"
LOOK_S: Final = 0.5
AT_A_TIME: Final = 32
"""Most concurrent handshakes of a process: one without an answer takes 10 s."""
LOOKED_AT: Final = 256
"""Most receivers checked in one round."""
HELD_LOOK_S: Final = 2.0
"""A receiver on hold is not verified automatically; how often the hold is checked."""
UNUSABLE_S: Final = 5.0
"""Interval between checks of a receiver whose settings cannot be used here."""
ONE_S: Final = TIMEOUT_S + 10.0
"""For this long no other process makes a handshake with the same receiver."""
NONCE_BYTES: Final = 32

_log = get_logger("relay.verifications")


def origin_of(public_url: str | None) -> str:
    """The relay's name in its request for consent."""
    return (urlsplit(public_url).hostname if public_url else None) or "relay"


@dataclass(eq=False)
class Verifier:
    """One per process. `owner`: unique per process. `origin`: a DNS name for the relay. `random_bytes(n)`: n
    unpredictable bytes."""

    log: Log
    state: State
    topics: Topics
    registry: Registry
    transport: Transport
    clock: Clock
    random_bytes: Callable[[int], bytes]
    _: KW_ONLY
    owner: str
    user_agent: str
    origin: str
    _running: dict[tuple[str, str], asyncio.Task[HandshakeResult | None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Runs until cancelled. While log or state are unavailable no receiver is verified."""
        while True:
            try:
                if self._due(1) and await self.state.lease(LEASE, self.owner, LEASE_S):
                    async with keeping_lease(self.state, self.clock, LEASE, self.owner):
                        await self._work()
            except* (Unavailable, NotYet) as group:
                _log.debug("verifications_wait", error=str(group.exceptions[0]))
            await self.clock.sleep(LOOK_S)

    async def try_now(self, receiver: Receiver) -> HandshakeResult | None:
        """The result of a handshake with the receiver, which this process then knows; of the one in progress, if
        there is one. None: another process has not finished its own in time. A failure does not revoke an earlier
        verification. Raises Unavailable."""
        of = receiver.name, handshake_of(receiver.verification, receiver.post.url)
        running = self._running.get(of)
        if running is None:
            running = self._running[of] = asyncio.create_task(self._try(receiver))
            running.add_done_callback(partial(self._tried_once, of))
        return await asyncio.shield(running)  # the caller may be cancelled; others wait for it, too

    async def close(self) -> None:
        """Ends the handshakes in progress, without a result."""
        for running in self._running.values():
            running.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _tried_once(self, of: tuple[str, str], ended: asyncio.Task[HandshakeResult | None]) -> None:
        del self._running[of]
        if not ended.cancelled():
            ended.exception()  # if no caller waits any more, the error is of no interest

    async def _try(self, receiver: Receiver) -> HandshakeResult | None:
        lease, owner = f"verification-{receiver.name}", f"{self.owner}-{self.random_bytes(6).hex()}"
        before, until = self.registry.verifications.newest(receiver.name), self.clock.monotonic() + ONE_S
        while not await self.state.lease(lease, owner, ONE_S):
            await self.clock.sleep(LOOK_S)
            result = self.registry.verifications.newest(receiver.name)
            if result is not None and result != before:
                return result  # the other process's result
            if self.clock.monotonic() >= until:
                return None
        try:
            result = await self._tried(receiver)
            if result.verified_at is None and is_proof(self.registry.verifications.newest(receiver.name), receiver):
                return result
            record = NewRecord(
                self.topics.receiver_config, ControlKey("verification", receiver.name).encode(), encode_value(result)
            )
            [at] = await self.log.append([record])
            await self.registry.reach(at.offset + 1)
        finally:
            await self.state.release(lease, owner)
        log = _log.info if result.verified_at is not None or result.failures > 1 else _log.warning
        log(
            "receiver_verification", receiver=receiver.name, verified=result.verified_at is not None, said=result.detail
        )
        return result

    # pending receivers

    def _due(self, most: int) -> list[str]:
        return self.registry.verifications.due(self.clock.time(), most)

    async def _work(self) -> None:
        """Until no receiver is due. Raises NotYet when another process has taken the lease."""
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                running = {name: task for name, task in running.items() if not task.done()}
                for receiver in self._next(running):
                    running[receiver.name] = tasks.create_task(self._attend_to(receiver))
                if not running and not self._due(1):
                    return
                if not await self.state.lease(LEASE, self.owner, LEASE_S):
                    raise NotYet("another process runs the verifications")
                resting = tasks.create_task(self.clock.sleep(LOOK_S))
                await asyncio.wait([*running.values(), resting], return_when=asyncio.FIRST_COMPLETED)
                resting.cancel()

    def _next(self, running: dict[str, asyncio.Task[None]]) -> list[Receiver]:
        """The receivers to verify next, as many as there are free places. Receivers that need no attempt now are
        postponed, or settled."""
        verifications, found = self.registry.verifications, list[Receiver]()
        for name in self._due(LOOKED_AT):
            if len(running) + len(found) >= AT_A_TIME:
                break
            receiver = self.registry.receiver(name)
            if receiver is not None and receiver.unusable is not None:
                verifications.postpone(name, self.clock.time() + UNUSABLE_S)
            elif receiver is None or receiver.verified or not receiver.enabled:
                verifications.settle([name])  # otherwise its next record says so
            elif name not in running and (due := self._due_at(receiver)) > self.clock.time():
                verifications.postpone(name, due)
            elif name not in running:
                found.append(receiver)
        return found

    def _due_at(self, receiver: Receiver) -> float:
        """When to try it (Unix seconds)."""
        result = self.registry.verifications.newest(receiver.name)
        if result is None or result.of != handshake_of(receiver.verification, receiver.post.url):
            return 0.0
        return next_try(result)

    async def _attend_to(self, receiver: Receiver) -> None:
        try:
            [health] = await self.state.endpoints([f"r:{receiver.name}"])
            tried = health.hold is None and await self.try_now(receiver) is not None
        except Unavailable as error:
            _log.debug("verification_waits", receiver=receiver.name, error=str(error))
            tried = False
        if not tried:
            self.registry.verifications.postpone(receiver.name, self.clock.time() + HELD_LOOK_S)

    # one handshake

    async def _tried(self, receiver: Receiver) -> HandshakeResult:
        nonce = base64url(self.random_bytes(NONCE_BYTES))
        of = handshake_of(receiver.verification, receiver.post.url)
        before = self.registry.verifications.newest(receiver.name)
        verdict = await self._asked(receiver, nonce)
        now = round(self.clock.time(), 3)
        if verdict.fault is not None:
            return failed(of, verdict.fault, now, before)
        origin = self.origin if receiver.verification == "cloudevents" else None
        return HandshakeResult(of, now, now, allowed_rate=verdict.allowed_rate, origin=origin)

    async def _asked(self, receiver: Receiver, nonce: str) -> Verdict:
        asked = partial(handshake, receiver, nonce, user_agent=self.user_agent, origin=self.origin)
        try:
            request, judge = asked(now=self.clock.wall())
        except ValueError as error:
            return Verdict(f"it cannot be asked: {error}")
        return judge(await self.transport.exchange(request))
