"""The process's deliveries: its lanes, and the transport that all their requests share."""

import random
import secrets
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import get_args

from relay.config.encryption import KeyRing, secret_place
from relay.config.own_address import AnswerUrls, answer_keys
from relay.delivery.egress import USER_AGENT, requests_of, transport_of
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Receiver
from relay.engine.request_limiter import RequestLimiter, attend
from relay.engine.work import WaitFor
from relay.run.composition import ProcessContext
from relay.run.lanes import Lanes
from relay.run.telemetry_part import TelemetryPart, life_of
from relay.state.rows import TAGS
from relay.telemetry.metrics import Metrics
from relay.watch.verifier import Verifier, origin_of
from workers.dependencies import Dependencies


class DeliveryPart:
    """The part of a process that makes requests: transport, and what the workers need beside it. `answer_urls`: where
    receivers may POST their answers, and read payloads, as known so far."""

    def __init__(
        self, context: ProcessContext, telemetry: TelemetryPart, answer_urls: Callable[[], AnswerUrls], ring: KeyRing
    ) -> None:
        """Raises UserError."""
        settings = context.settings
        self._context = context
        self._observer = telemetry.observer
        self._answer_urls = answer_urls
        self._ring = ring
        seats = requests_of(settings)
        self._request_limiter = RequestLimiter(context.clock, telemetry.observer, seats)
        self.transport = transport_of(settings, seats)
        self.verifier = self._new_verifier()
        self.lanes = Lanes(
            settings,
            context.plan,
            context.registry,
            context.log,
            context.state,
            self._dependencies(telemetry),
            telemetry.observer,
            telemetry.retrier,
            telemetry.sentry,
            telemetry.events.failed,
            process=context.owner,
            load=telemetry.load,
        )
        _show_levels(telemetry.metrics, self.lanes)

    def _new_verifier(self) -> Verifier:
        context = self._context
        return Verifier(
            *context.stores,
            context.registry,
            self.transport,
            context.clock,
            secrets.token_bytes,
            owner=context.lease_owner,
            user_agent=USER_AGENT,
            origin=origin_of(context.settings.public_url),
        )

    def _dependencies(self, telemetry: TelemetryPart) -> Dependencies:
        return Dependencies(
            self.transport,
            self._context.clock,
            random.random,
            USER_AGENT,
            self._answer_url,
            telemetry.meter,
            tuple(filter(None, (telemetry.attempts.journal, telemetry.traces))),
            telemetry.traces,
            telemetry.attempts.report,
            payload_url=self._payload_url,
            answer_keys=answer_keys(self._context.settings),
            request_limiter=self._request_limiter,
            erasures=self._context.registry.erasures,
            opened_secret=self._opened_secret,
            life_of=partial(life_of, self._context.registry),
        )

    def _answer_url(self, receiver: Receiver, hop: Hop) -> str | None:
        expires = int(self._context.clock.time() + receiver.answer_deadline)
        return self._answer_urls().of(hop.delivery, hop.generation, expires)

    def _payload_url(self, hop: Hop) -> str | None:
        expires = int(self._context.clock.time() + self._context.settings.payload_url_lifetime)
        return self._answer_urls().of_payload(hop.delivery, hop.life, expires)

    def _opened_secret(self, delivery: DeliveryId, sealed: str) -> str:
        return self._ring.opened(sealed, secret_place(delivery.source_id, delivery.message_id))

    async def close(self) -> None:
        """Ends all requests. First handshakes, which would fail for that, and record it."""
        await self.verifier.close()
        await self.transport.close()

    def parts(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """The services that the lanes need, each with its name; to be run until cancelled."""
        yield "pump", self.lanes.pump.run()
        yield "signs of life", self.lanes.heartbeats.run(self._context.state, self._context.clock)
        if self._context.plan.roles & {"to-receiver", "to-sender"}:
            yield "hints of endpoints", self.lanes.pump.listen()
        yield "attendance", self._attend()

    async def _attend(self) -> None:
        if self._context.plan.roles & {"to-receiver", "from-receiver-async", "to-sender"}:
            await attend(self._context.state, self._context.clock, self._request_limiter, range(TAGS), self._observer)


def _show_levels(metrics: Metrics, lanes: Lanes) -> None:
    """Computes the memory use of this process's lanes for each exposition of the metrics."""
    metrics.memory_budget_bytes.set(lanes.memory.limit)

    def set_levels() -> None:
        metrics.memory_held_bytes.set(lanes.memory.used)
        metrics.requests_in_flight.clear()
        metrics.waiting_records.clear()
        for role, levels in lanes.levels().items():
            metrics.requests_in_flight.labels(role).set(levels.in_flight)
            for reason in get_args(WaitFor):
                metrics.waiting_records.labels(role, reason).set(levels.waits[reason])

    metrics.before_collecting(set_levels)
