"""What may be written in receivers.yaml about when things are tried again, or asked about, and the defaults."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from relay.config.durations import PositiveDuration
from relay.config.entry import Entry

Count = Annotated[int, Field(ge=1)]
Factor = Annotated[float, Field(ge=1, le=1000)]


class RetryEntry(Entry):
    """When to try again; the first limit reached ends the delivery."""

    base: PositiveDuration = 5.0
    """Longest wait after the first attempt."""
    factor: Factor = 2.0
    """By how much the longest wait grows with each attempt."""
    cap: PositiveDuration = 3600.0
    """Longest wait of all. The wait is drawn evenly from 0 to the longest (full jitter)."""
    max_attempts: Count = 20
    """Attempts, the first included; then a dead letter `exhausted`."""
    max_age: PositiveDuration = 172_800.0
    """Age of the message at which it is given up; then a dead letter `expired`."""

    @field_validator("cap")
    @classmethod
    def _not_under_base(cls, cap: float, info: ValidationInfo) -> float:
        return _at_least_base(cap, info)


class BreakerEntry(Entry):
    """`failures` in a row within `window` open the breaker for `open_for`."""

    failures: Count = 10
    """Failures in a row that open the breaker."""
    window: PositiveDuration = 60.0
    """Within which they have to come."""
    open_for: PositiveDuration = 30.0
    """For how long nothing is sent; then a single attempt decides."""


class OfflineEntry(Entry):
    """An endpoint that is down for longer than `after` gets only a throw-away ping every `ping_every`, until it answers
    one; after `disable_after` it is paused until somebody resumes it."""

    after: PositiveDuration = 600.0
    """From when on a failing endpoint gets pings only."""
    ping_every: Annotated[PositiveDuration, Field(ge=1, le=43_200)] = 60.0
    """Time between pings."""
    disable_after: PositiveDuration = 432_000.0
    """From when on it is paused until an operator resumes it."""

    @field_validator("disable_after")
    @classmethod
    def _beyond_after(cls, disable_after: float, info: ValidationInfo) -> float:
        after = info.data.get("after", 0.0)
        if disable_after <= after:
            raise ValueError(f"{disable_after:g} s is not more than after, {after:g} s")
        return disable_after


class PollEntry(Entry):
    """Waits between status GETs."""

    base: PositiveDuration = 2.0
    """Wait before the first status GET."""
    factor: Factor = 1.5
    """By how much the wait grows with each."""
    cap: PositiveDuration = 60.0
    """Longest wait between two."""

    @field_validator("cap")
    @classmethod
    def _not_under_base(cls, cap: float, info: ValidationInfo) -> float:
        return _at_least_base(cap, info)


def _at_least_base(cap: float, info: ValidationInfo) -> float:
    base = info.data.get("base", 0.0)
    if cap < base:
        raise ValueError(f"{cap:g} s is less than base, {base:g} s")
    return cap
