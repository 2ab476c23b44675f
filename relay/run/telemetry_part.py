"""The process's telemetry: logs, metrics, Sentry, traces, the attempt log and the relay's own events."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial

from relay import __version__
from relay.control.registry import Registry
from relay.domain.receiver import Endpoint
from relay.domain.topics import SHARED
from relay.engine.supervision import Retrier
from relay.run.composition import ProcessContext
from relay.telemetry.metrics import Metrics
from relay.telemetry.observer import TelemetryObserver
from relay.telemetry.sentry import SentryReporter
from relay.watch.attempt_log import AttemptLog
from relay.watch.event_loop import LoopWatch
from relay.watch.hot_moves import HotReceiverWatch
from relay.watch.own_events import OwnEvents
from relay.watch.statistics import MetricsMeter, StatisticsWriter, Tallies
from relay.watch.traces import traces_of


class TelemetryPart:
    """The part of a process for logs, metrics, Sentry and traces. `recover`: called when the state requests a recovery.
    `exit_when_stuck`: end the process if its event loop is blocked so long that consumer groups would evict its
    members."""

    def __init__(
        self,
        context: ProcessContext,
        environ: Mapping[str, str],
        recover: Callable[[], None],
        *,
        exit_when_stuck: bool,
    ) -> None:
        settings, plan, clock = context.settings, context.plan, context.clock
        self._settings = settings
        self.metrics = metrics = Metrics(__version__)
        tallies = Tallies(partial(_endpoint_of, context.registry), partial(life_of, context.registry))
        self.meter = MetricsMeter(metrics, tallies)
        hot = HotReceiverWatch(
            metrics, context.topics, partial(_is_shared, context.registry), context.registry.lanes.hot
        )
        measures = settings.hot_receivers != "off"

        def took(sent: Mapping[str, int]) -> None:
            metrics.weigh(sent)
            if measures:
                hot.add(sent)

        self.load = hot.load if measures else lambda _topic: None
        self.statistics = StatisticsWriter(tallies, context.state, clock, writer=context.owner, took=took)
        log, topics = context.log, context.topics
        self.events = OwnEvents(log, context.state, topics, context.registry, clock, metrics)
        self.sentry = SentryReporter()
        logs_all = settings.log_level == "debug"
        self.observer = TelemetryObserver(
            metrics,
            self.sentry,
            recover,
            logs_attempts=lambda endpoint_id: logs_all or plan.logs_attempts(endpoint_id),
            turned=self.events.turned,
        )
        self.retrier = Retrier(clock, self.observer)
        # A member without heartbeats is evicted after its session timeout; the event loop sends the heartbeats.
        self.loop_watch = LoopWatch(metrics, settings.kafka_session_timeout / 2 if exit_when_stuck else None)
        self.attempts = AttemptLog(log, topics, clock, metrics, share=settings.attempt_log)
        self.traces = traces_of(environ, plan, topics, clock)

    def start(self) -> None:
        settings = self._settings
        dsn = settings.sentry_dsn.get_secret_value() if settings.sentry_dsn else None
        pages = settings.public_url if settings.pages else None
        self.sentry.start(dsn, settings.sentry_environment or "production", __version__, pages)

    def parts(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """Each with its name; to be run until cancelled, after `end`."""
        yield "own events", self.events.run(self.retrier)
        yield "attempt log", self.attempts.run()
        yield "statistics", self.statistics.run()

    async def end(self) -> None:
        """Writes pending events and attempts to the log, if it answers."""
        await self.events.end()
        await self.attempts.end()

    async def close(self) -> None:
        await asyncio.to_thread(self.sentry.close)
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)


def _is_shared(registry: Registry, receiver: str) -> bool:
    found = registry.receiver(receiver)
    return found is not None and found.lane == SHARED


def _endpoint_of(registry: Registry, receiver: str) -> Endpoint | None:
    found = registry.receiver(receiver)
    return None if found is None or found.unusable is not None else found.post


def life_of(registry: Registry, receiver: str) -> str | None:
    """The id of the present life of a receiver's name; None if there is no such receiver."""
    found = registry.receiver(receiver)
    return None if found is None else found.life.id
