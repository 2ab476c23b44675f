"""What a lane keeps to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Everything is bounded. Counts are per lane unless said otherwise; durations in seconds."""

    window: int = 2_000
    """Unfinished records, at most."""
    span: int = 20_000
    """Offsets between the commit watermark and the newest record, at most."""
    parked_per_owner: int = 100_000
    """Parked references of a receiver; polls are counted apart."""
    parked_total: int = 1_000_000
    due_in_hand: int = 500
    """Parked records taken up at a time."""
    lease_s: float = 60.0
    """How long a reference taken from the due index stays with this lane before it comes again."""
    start_within_s: float = 5.0
    """A request starts within this time of its begin, or the begin is released."""
    crashes: int = 3
    """Unexpected exceptions of a step before its record is called poison."""
