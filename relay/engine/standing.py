"""Whether the endpoint that a lane sends to takes anything now, as far as known here. Of use where it has but one."""


class Standing:
    def __init__(self) -> None:
        self._failures = 0  # in a row
        self.down = False
        """It takes nothing, for its own reasons, not only because of our pace."""

    def closed(self, *, down: bool) -> None:
        """The endpoint takes nothing now. `down`: for its own reasons."""
        self.down = self.down or down

    def heard(self, *, healthy: bool, enough: int | None) -> None:
        """It took a request as it should, or did not. `enough`: so many failures in a row open its breaker.

        Begins will say so, too; but what has failed is parked before the next of them.
        """
        self._failures = 0 if healthy else self._failures + 1
        if healthy:
            self.down = False
        elif enough is not None and self._failures >= enough:
            self.down = True
