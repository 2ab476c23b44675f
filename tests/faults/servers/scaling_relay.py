"""The `relay` command as on a machine with four cores, where any backlog adds a process, and its end removes it."""

from relay.cli import run
from relay.cli.main import main
from relay.run.autoscale import ScaleLimits

if __name__ == "__main__":
    run.available_cores = lambda: 4  # type: ignore[attr-defined]  # two of them for the stores
    run.SCALE_LIMITS = ScaleLimits(  # type: ignore[misc]
        busy_cores=0.0, late_s=0.0, backlog=20, drain_s=0.0, idle_cores=10.0, short_s=0.0, quiet_s=0.0, settle_s=0.5
    )
    main()
