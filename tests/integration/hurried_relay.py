"""The `relay` command, in which hot receivers are detected and moved within seconds instead of minutes."""

from functools import partial

from relay.cli.main import main
from relay.domain import hot_receivers
from relay.domain.hot_receivers import MoveLimits
from relay.run import process
from relay.watch import heartbeats, hot_moves, statistics


def _hurry() -> None:
    statistics.EVERY_S = 0.1  # type: ignore[misc]
    hot_receivers.LEAST = 12  # type: ignore[misc]
    heartbeats.SIGN_EVERY_S = 0.2  # type: ignore[misc]
    hot_moves.LOOK_S = 0.2  # type: ignore[misc]
    limits = MoveLimits(hot_s=2.0, stay_s=1.0, calm_s=1.0, most=1)
    vars(process)["HotReceiverMoves"] = partial(hot_moves.HotReceiverMoves, limits=limits)


if __name__ == "__main__":
    _hurry()
    main()
