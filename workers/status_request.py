"""Status GETs: one exchange with a receiver, and the delay before the next."""

from collections.abc import Callable
from dataclasses import replace

from relay.domain.exchange import Exchange
from relay.domain.failure import failure_detail
from relay.domain.hop import Hop
from relay.domain.receiver import PollPolicy, Receiver
from relay.domain.requests import status_request
from relay.domain.schedule import poll_delay
from relay.domain.status import AskLater, StatusReading, read_status
from relay.engine.work import Call, Decision
from workers.dependencies import Outside
from workers.journal import RequestPurpose


def ask(
    outside: Outside,
    about: RequestPurpose,
    hop: Hop,
    receiver: Receiver,
    url: str,
    decide: Callable[[StatusReading], Decision],
) -> Call[Exchange]:
    """Ask `receiver` at `url` about the delivery of `hop`; `decide` says what the reading means for it."""
    hop = outside.traced(hop, about.kind, about.attempt)
    timeout_s = receiver.post.timeout
    request = status_request(url, receiver, user_agent=outside.user_agent, timeout_s=timeout_s, hop=hop)

    def read(exchange: Exchange) -> Decision:
        reading = read_status(exchange, status_map=receiver.status_map, now=outside.clock.time())
        if isinstance(reading, AskLater):
            reading = replace(reading, detail=failure_detail(exchange, receiver.post, url=url, method="GET"))
        return decide(reading)

    return outside.call(about, request, read)


def ask_again_s(wish_s: float | None, asked: int, policy: PollPolicy) -> float:
    """Seconds until the next GET after `asked` of them: the receiver's wish, else the policy's next step.

    A wish may be shorter than that step, but not than the first: `Retry-After: 0` must not become a busy loop.
    """
    return poll_delay(asked, policy) if wish_s is None else max(wish_s, policy.base)
