"""Production's adapters as the settings say, the log on Kafka and the state on Redis; and the context of a process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from relay.clock import Clock, SharedClock
from relay.config.limits import fetch_budget
from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.control.resolve import lanes_of_receivers
from relay.domain.topics import Topics
from relay.engine.holding import Holding
from relay.engine.observer import Observer
from relay.engine.supervision import Retrier
from relay.log.kafka.cluster import MAX_MESSAGE_BYTES, Isolation, KafkaCluster, KafkaSecurity
from relay.log.kafka.log import KafkaLog
from relay.log.port import Log
from relay.recovery.recovery_pass import Recovery
from relay.state.port import State
from relay.state.redis.state import RedisState

EMBEDDED_OWNER: Final = "embedded"
"""The owner of all leases in the data directory of an embedded relay. No second process can use that, so after a kill
the next one need not wait until they expire."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The context that the parts of a process share. `owner`: the process's name, unique among all."""

    settings: Settings
    plan: ProcessPlan
    log: Log
    state: State
    topics: Topics
    clock: SharedClock
    registry: Registry
    owner: str

    @property
    def stores(self) -> tuple[Log, State, Topics]:
        return self.log, self.state, self.topics

    @property
    def lease_owner(self) -> str:
        """The owner of this process's leases."""
        return self.owner if self.plan.data_dir is None else EMBEDDED_OWNER


def kafka_log(settings: Settings, *, repeat_s: float | None = None, gather_bytes: int = 1) -> KafkaLog:
    """The log of production, not yet started. `repeat_s`, `gather_bytes`: see KafkaCluster."""
    password = settings.kafka_sasl_password
    cluster = KafkaCluster(
        settings.kafka_bootstrap_servers,
        repeat_s=repeat_s,
        max_message_bytes=max(MAX_MESSAGE_BYTES, settings.max_payload_bytes),
        isolation=Isolation[settings.kafka_isolation.upper()],
        gather_bytes=gather_bytes,
        read_partitions=Topics(settings.topic_prefix).read_partitions(),
        security=KafkaSecurity(
            protocol=settings.kafka_security_protocol,
            mechanism=settings.kafka_sasl_mechanism or "SCRAM-SHA-512",
            user=settings.kafka_sasl_username,
            password=password.get_secret_value() if password else None,
            ca_file=_text(settings.kafka_ca_file),
            certificate_file=_text(settings.kafka_certificate_file),
            key_file=_text(settings.kafka_key_file),
        ),
    )
    return KafkaLog(
        cluster,
        replication_factor=settings.kafka_replication_factor,
        session_timeout_ms=int(settings.kafka_session_timeout * 1000),
        fetch_budget=fetch_budget(settings),
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def redis_state(settings: Settings) -> RedisState:
    """The state of production, not yet started."""
    return RedisState(
        settings.redis_url.get_secret_value(), prefix=settings.topic_prefix, dedup_window_s=settings.dedup_window
    )


def recovery_of(
    log: Log, state: State, topics: Topics, clock: Clock, settings: Settings, owner: str,
    observer: Observer | None = None, retrier: Retrier | None = None,
) -> Recovery:  # fmt: skip
    """The recovery of lost state. `owner`: the name under which its lease is held. Commands have no observer."""
    observer = observer or Observer()
    return Recovery(
        log,
        state,
        topics.parked(),
        clock,
        observer,
        retrier or Retrier(clock, observer),
        owner=owner,
        in_doubt_s=settings.dedup_window,
        holding=Holding(log, state, topics.receiver_config),
        lanes=partial(lanes_of_receivers, log, topics),
    )


@asynccontextmanager
async def open_log(settings: Settings, *, repeat_s: float | None = None) -> AsyncIterator[Log]:
    """A started log, for one command. Raises LogUnavailable if it does not answer. `repeat_s`: see
    KafkaCluster."""
    log = kafka_log(settings, repeat_s=repeat_s)
    try:
        await log.start()
        yield log
    finally:
        await log.close()
