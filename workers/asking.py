"""Status GETs: one exchange with a receiver, and when to ask again."""

from relay.domain.receiver import PollPolicy, Receiver
from relay.domain.requests import status_request
from relay.domain.schedule import poll_delay
from relay.domain.status import StatusReading, read_status
from workers.outside import Outside


async def ask(outside: Outside, receiver: Receiver, url: str) -> StatusReading:
    """What `receiver` says at `url` about a delivery."""
    request = status_request(url, receiver, user_agent=outside.user_agent, timeout_s=receiver.post.timeout)
    exchange = await outside.transport.exchange(request)
    return read_status(exchange, status_map=receiver.status_map, now=outside.clock.time())


def ask_again_s(wish_s: float | None, asked: int, policy: PollPolicy) -> float:
    """Seconds until the next GET after `asked` of them: the receiver's wish, else the policy's next step.

    A wish may be shorter than that step, but not than the first: `Retry-After: 0` must not become a busy loop.
    """
    return poll_delay(asked, policy) if wish_s is None else max(wish_s, policy.base)
