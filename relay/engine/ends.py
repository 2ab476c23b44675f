"""Where an attempt leads: what a lane does about each way in which it can end."""

from typing import Protocol

from relay.engine.work import Dead, Done, Later, W_contra


class Ends(Protocol[W_contra]):
    """Exactly one of `again`, `later`, `publish` and `known` is called for each work, unless the lane is lost."""

    def again(self, work: W_contra, due: float) -> None:
        """Wait until the monotonic time `due`, then begin again; nothing was learned about the work itself."""
        ...

    def later(self, work: W_contra, later: Later) -> None:
        """The step said Later, and its row knows; or it was not begun."""
        ...

    def publish(self, work: W_contra, decision: Done | Dead) -> None: ...

    def known(self, work: W_contra) -> None:
        """Its output is acknowledged already, or a higher generation lives."""
        ...

    def close(self, gate: str, seconds: float, *, down: bool) -> None:
        """The endpoint takes nothing now. `down`: for its own reasons, not only because of our pace."""
        ...

    def heard(self, work: W_contra, *, healthy: bool) -> None:
        """The endpoint of `work` took a request as it should, or did not."""
        ...

    def fence(self) -> None:
        """A newer owner has the lane."""
        ...
