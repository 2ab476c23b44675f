"""`relay run --processes N`: N processes on one machine, started again when one ends by itself."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from relay.cli.process import run_until_signalled
from relay.plan import API, Plan
from relay.telemetry.logging import get_logger

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
USAGE = 2


async def run_processes(count: int, plan: Plan, config_file: Path | None) -> None:
    """Run `count` processes until a signal; only the first serves the API. A mistake in the settings ends them all."""
    commands = [_command(plan, config_file, with_api=index == 0) for index in range(count)]

    async def work(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for command in commands:
                tasks.create_task(_keep_running(command, stop))

    await run_until_signalled(work, grace_s=60.0)


def _command(plan: Plan, config_file: Path | None, *, with_api: bool) -> list[str]:
    roles = plan.roles if with_api else plan.roles - {API}
    command = [sys.executable, "-m", "relay", "run", "--processes", "1", "--roles", ",".join(sorted(roles))]
    if plan.receivers is not None:
        command += ["--receivers-only", ",".join(sorted(plan.receivers))]
    return command + (["--config", str(config_file)] if config_file else [])


async def _keep_running(command: Sequence[str], stop: asyncio.Event) -> None:
    log, pause_s = get_logger("relay.processes"), FIRST_PAUSE_S
    while not stop.is_set():
        process = await asyncio.create_subprocess_exec(*command)
        code = await _until_exit(process, stop)
        if stop.is_set():
            return
        if code == USAGE:
            stop.set()  # it has said what is wrong; another try would say the same
            return
        log.warning("process_ended", pid=process.pid, code=code, again_in_s=pause_s)
        await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


async def _until_exit(process: asyncio.subprocess.Process, stop: asyncio.Event) -> int:
    """The exit code; when `stop` comes first, the process is asked to end, too."""
    ending = asyncio.ensure_future(process.wait())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((ending, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            process.terminate()
        return await ending
    finally:
        stopping.cancel()
        if process.returncode is None:
            process.kill()
