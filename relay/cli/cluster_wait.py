"""Waits for a cluster that answers but is not ready: a fresh broker needs time for its first group."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay, wait_exponential

from relay.domain.errors import LogUnavailable
from relay.domain.times import format_duration

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
REPEAT_S: Final = 0.5
"""Interval of the log's own retries. It is short, so that the command soon reports what it waits for."""


async def wait_for_cluster(call: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """The result of `call`, which is repeated for `limit_s` while the log is not ready; each reason is printed once.
    Raises the last LogUnavailable, with the time waited."""
    said: list[str] = []

    def say(state: RetryCallState) -> None:
        reason = str(state.outcome.exception()) if state.outcome is not None else ""
        if reason not in said:
            said.append(reason)
            click.echo(f"waiting, for up to {format_duration(limit_s)} (RELAY_KAFKA_WAIT): {reason}", err=True)

    async def attempt() -> T:  # tenacity awaits only functions declared `async`
        return await call()

    repeating = AsyncRetrying(
        retry=retry_if_exception_type(LogUnavailable),
        wait=wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        stop=stop_before_delay(limit_s),
        before_sleep=say,
        reraise=True,
    )
    try:
        return await repeating(attempt)
    except LogUnavailable as error:
        if not said:
            raise
        raise LogUnavailable(f"{error}; waited {format_duration(limit_s)} for it (RELAY_KAFKA_WAIT)") from error
