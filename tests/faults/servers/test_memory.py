"""Memory of a real process: a receiver is down, and what it is sent is large. What waits stays in the log."""

import os
from pathlib import Path

from tests.browser.dev_relay import DevRelay
from tests.servers.asking import until

MIB = 1024**2
BUDGET = 16 * MIB
PAYLOAD = b'"' + b"x" * 1_000_000 + b'"'
MESSAGES = 160
GROWTH = 100 * MIB
"""Of the resident set: the budget, bodies that the API reads, payloads once more in requests, and what an allocator
keeps. All messages together are more."""

RECEIVERS = """
receivers:
  down:
    post_endpoint: http://127.0.0.1:9/hook
    ordering: none
    retry: {base: 1s, factor: 1, cap: 1s}
"""


def resident(pid: int) -> int:
    """Bytes that the process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_receiver_that_is_down_does_not_fill_the_memory_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "receivers.yaml").write_text(RECEIVERS)
    async with DevRelay(tmp_path, {"RELAY_MEMORY_BUDGET": "16MiB"}) as dev:
        await dev.send("github", "first", PAYLOAD, to="down")
        before = most = resident(dev.process.pid)
        for number in range(MESSAGES):
            await dev.send("github", f"m-{number}", PAYLOAD, to="down")
            most = max(most, resident(dev.process.pid))
        looks = 0

        async def has_settled() -> bool:
            nonlocal most, looks
            most = max(most, resident(dev.process.pid))
            last = await dev.message("github", f"m-{MESSAGES - 1}")
            looks += bool(last["deliveries"])  # it has been routed
            return looks >= 100

        await until(has_settled)
        assert most - before < GROWTH, f"{(most - before) // MIB} MiB more than before"
