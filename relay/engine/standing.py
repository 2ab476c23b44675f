"""Whether a lane stands still: a dedicated one, whose only endpoint takes nothing now, as far as known here."""


class Standing:
    """`shared` lanes never do: what waits for a closed endpoint there is parked, out of the others' way."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._failures = 0  # in a row
        self._down = False

    def still(self) -> bool:
        """It stops its intake, instead of parking its backlog."""
        return self._down and not self._shared

    def closed(self, *, down: bool) -> None:
        """The endpoint takes nothing now. `down`: for its own reasons, not only because of our pace."""
        self._down = self._down or down

    def heard(self, *, healthy: bool, enough: int | None) -> None:
        """It took a request as it should, or did not. `enough`: so many failures in a row open its breaker.

        Begins will say so, too; but what has failed is parked before the next of them.
        """
        self._failures = 0 if healthy else self._failures + 1
        if healthy:
            self._down = False
        elif enough is not None and self._failures >= enough:
            self._down = True
