"""The `relay` command with faults built in: python -m tests.faults.harness.entry run ...

From the environment: RELAY_FAILPOINT (`name:n:action`, see failpoints), RELAY_FAILPOINT_COUNTS (a file; each process
that ran to its end appends a line with the points it passed), RELAY_BUG (a name in planted). For the commands that run
workers on Kafka and Redis. A failpoint counts per process, so `run` needs `--processes 1` with it.
"""

import atexit
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, TypeVar

import relay.delivery.egress
import relay.run.composition
import relay.run.processes
from relay.api.peers import GroupProcess
from relay.cli.main import main as relay_main
from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.delivery.port import Transport
from relay.log.port import Log
from relay.state.port import State
from tests.faults.harness.failpoints import Failpoints, PointedTransport, parse, pointed_log, pointed_state

T = TypeVar("T")

FAILPOINT: Final = "RELAY_FAILPOINT"
COUNTS: Final = "RELAY_FAILPOINT_COUNTS"
BUG: Final = "RELAY_BUG"
USAGE: Final = 2


def main() -> None:
    """As `relay`. Exit code 137 if the failpoint killed it, 2 for a mistake in the variables."""
    given = {name: _take(name) for name in (FAILPOINT, COUNTS, BUG)}
    try:
        armed = parse(given[FAILPOINT]) if given[FAILPOINT] else None
        bug = planted(given[BUG]) if given[BUG] else nullcontext()
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USAGE)
    failpoints = Failpoints(armed)
    if armed or given[COUNTS]:
        install(failpoints)
    if given[COUNTS]:
        atexit.register(_write, failpoints, Path(given[COUNTS]))
    keep_children()
    with bug:
        relay_main()


def planted(name: str) -> AbstractContextManager[None]:
    """Raises ValueError for an unknown name."""
    module = importlib.import_module("tests.faults.harness.planted")  # most processes have no bug
    bugs: Mapping[str, Callable[[], AbstractContextManager[None]]] = module.PLANTED
    if name not in bugs:
        raise ValueError(f"{BUG}={name}: none of {', '.join(sorted(bugs))}")
    return bugs[name]()


def install(failpoints: Failpoints) -> None:
    """Adds failpoints to production's ports."""
    open_log, open_state = relay.run.composition.kafka_log, relay.run.composition.redis_state
    open_transport = relay.delivery.egress.transport_of

    def log_of(settings: Settings, *, gather_bytes: int = 1) -> Log:
        return pointed_log(open_log(settings, gather_bytes=gather_bytes), failpoints)

    def state_of(settings: Settings) -> State:
        return pointed_state(open_state(settings), failpoints)

    def transport_of(settings: Settings, most_open: int) -> Transport:
        return PointedTransport(open_transport(settings, most_open), failpoints)

    replace(open_log, log_of)
    replace(open_state, state_of)
    replace(open_transport, transport_of)


def keep_children() -> None:
    """Child processes run this module, too, instead of the plain command."""
    plain = relay.run.processes.command

    def command(member: GroupProcess, plan: ProcessPlan, config_file: Path | None) -> list[str]:
        return [__spec__.name if word == "relay" else word for word in plain(member, plan, config_file)]

    replace(plain, command)


def replace(original: T, by: T) -> None:
    """Replaces it in the module that defines it, and in those that have imported it."""
    name: str = original.__name__  # type: ignore[attr-defined]
    for module in list(sys.modules.values()):
        if vars(module).get(name) is original:
            setattr(module, name, by)


def _take(name: str) -> str | None:
    """Removes the variable from the environment, because the settings refuse unknown ones. Child processes get it under
    a name that the settings ignore."""
    inherited = name.replace("RELAY_", "RELAY_TEST_", 1)
    if name in os.environ:
        os.environ[inherited] = os.environ.pop(name)
    return os.environ.get(inherited)


def _write(failpoints: Failpoints, path: Path) -> None:
    """Writes nothing for a process that only started others."""
    if failpoints.passed:
        failpoints.write(path)


if __name__ == "__main__":
    main()
