"""The duration of `relay export` and `relay import`: `python -m bench.transfer [MESSAGES]`.

Once for finished messages of 1 kB, their answers back at the sender, and once for as many unread ones. From one relay
on Kafka and Redis to another one there, under another prefix.
"""

import asyncio
import sys
import time
from dataclasses import replace
from typing import Final

from bench.cases import BASE
from bench.phases import drain
from bench.rig import Options, Rig
from bench.servers import finish

_CASE: Final = replace(BASE, round_trip=True, payload=1000, answer=200)
_OTHER: Final = {"RELAY_TOPIC_PREFIX": "other-"}


async def measure(messages: int, *, finished: bool) -> str:
    """What was found, in a line."""
    async with Rig(_CASE, Options(processes=1)) as rig:
        if finished:
            await drain(rig, messages)
            await rig.relay.stop()
        else:
            async with rig.load(messages, rate=0) as load:
                await load.go()
                await load.done.wait()
                load.check()
        file = rig.directory / "moved.jsonl"
        for name, arguments in {"topics": ("topics", "apply"), "receivers": ("receivers", "apply")}.items():
            await finish(rig.relay.command(f"other-{name}", *arguments, **_OTHER))
        export_s = await _seconds(rig, "export", str(file), {})
        import_s = await _seconds(rig, "import", str(file), _OTHER)
        kind = "finished" if finished else "unfinished"
        size = file.stat().st_size / messages
        return (
            f"{messages:,} {kind}: export {export_s:.0f} s, import {import_s:.0f} s, {size:,.0f} bytes each in the file"
        )


async def _seconds(rig: Rig, command: str, file: str, settings: dict[str, str]) -> float:
    begun = time.monotonic()
    await finish(rig.relay.command(command, command, file, **settings))
    return time.monotonic() - begun


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for finished in (True, False):
        print(asyncio.run(measure(messages, finished=finished)))  # noqa: T201


if __name__ == "__main__":
    main()
