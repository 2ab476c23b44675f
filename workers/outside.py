"""What the steps need of the world: HTTP, time, chance, and somebody who counts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from relay.delivery.port import Transport
from relay.domain.hop import Hop
from relay.domain.receiver import Receiver
from relay.engine.clock import Clock
from workers.meter import Meter, SilentMeter


@dataclass(frozen=True, slots=True)
class Outside:
    """`jitter`: uniform sample of [0, 1). `answer_url`: where a receiver may POST its answer later (None: nowhere)."""

    transport: Transport
    clock: Clock
    jitter: Callable[[], float]
    user_agent: str
    answer_url: Callable[[Receiver, Hop], str | None] = lambda _receiver, _hop: None
    meter: Meter = field(default_factory=SilentMeter)
