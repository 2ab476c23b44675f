"""The limits of the machine and of the measurement: a core's speed, and the highest rate of the receiver.

As a process (`python -m bench.ceiling PORT SECONDS`): raw load on a receiver, over many keep-alive connections with one
request in flight each, and a line of JSON with the number of responses.
"""

import asyncio
import json
import random
import sys
import time
from asyncio import Transport
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import uvloop

from bench.children import Child, own_environ
from bench.procstat import processes
from bench.wire import filler, prefix

_CONNECTIONS: Final = 64
_LOOPS: Final = 200_000

# As many bytes as the relay's own requests have, with the length among the last of the headers.
_HEAD: Final = (
    b"POST /r/r0 HTTP/1.1\r\nhost: 127.0.0.1:65535\r\ncontent-type: application/json\r\nwebhook-id: msg_%026d\r\n"
    b"webhook-timestamp: 1700000000\r\nwebhook-signature: v1,%044d\r\nce-specversion: 1.0\r\nce-id: %d\r\n"
    b"ce-source: source-0\r\nce-type: push\r\nrelay-attempt: 1\r\nrelay-generation: 0\r\nrelay-deadline: 1700000000\r\n"
    b"relay-sequence: 1\r\nuser-agent: relay/0.1.0\r\ncontent-length: %d\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """`loops`: iterations a second of a fixed loop in Python, on one core, by CPU time: figures from two machines
    compare by it. `receiver_rate`: requests a second that one receiver process took; `receiver_us`: CPU for each."""

    loops: float
    receiver_rate: float
    receiver_us: float


async def calibrate(directory: Path, seconds: float) -> Calibration:
    """Measure now. `directory`: for logs."""
    loops = await asyncio.to_thread(loop_speed)
    rate, cpu_us = await _receiver_ceiling(directory, seconds)
    return Calibration(loops, rate, cpu_us)


def loop_speed() -> float:
    """Iterations a second of CPU time; the best of five, which is what the core does when it is ours alone."""
    best = 0.0
    for _ in range(5):
        table, text = dict[int, int](), "relay"
        begun = time.thread_time()
        for number in range(_LOOPS):
            key = (number * 31 + len(text)) % 1009
            table[key] = table.get(key, 0) + number
        best = max(best, _LOOPS / (time.thread_time() - begun))
    return best


async def _receiver_ceiling(directory: Path, seconds: float) -> tuple[float, float]:
    knobs = {"latency_s": 0, "failing": 0, "retry_after_s": 0, "echo": False, "pairs": 1}
    command = [sys.executable, "-m", "bench.receiver", json.dumps(knobs)]
    receiver = Child("receiver-ceiling", command, directory, environ=own_environ(), piped=True)
    await receiver.start()
    try:
        port = json.loads(await receiver.read_line())["port"]
        before = processes()[receiver.pid].cpu_s
        raw = [sys.executable, "-m", "bench.ceiling", str(port), str(seconds)]
        load = Child("raw-load", raw, directory, environ=own_environ(), piped=True)
        await load.start()
        try:
            answered = json.loads(await load.read_line())["answered"]
        finally:
            await load.stop()
        spent = processes()[receiver.pid].cpu_s - before
    finally:
        await receiver.stop()
    return answered / seconds, spent / max(answered, 1) * 1e6


class _Raw(asyncio.Protocol):
    """A connection that sends its next request at each answer."""

    answered = 0

    def __init__(self, behind: bytes) -> None:
        self._behind = behind

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        _Raw.answered += 1
        self._send()

    def _send(self) -> None:
        serial = _Raw.answered
        body = prefix(time.time_ns(), serial, 0) + self._behind
        self._transport.write(_HEAD % (serial, serial, serial, len(body)) + body)


async def _load(port: int, seconds: float) -> None:
    loop, behind = asyncio.get_running_loop(), filler(1024, random.Random(0))
    for _ in range(_CONNECTIONS):
        await loop.create_connection(lambda: _Raw(behind), "127.0.0.1", port)
    before = _Raw.answered
    await asyncio.sleep(seconds)
    sys.stdout.write(json.dumps({"answered": _Raw.answered - before}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_load(int(sys.argv[1]), float(sys.argv[2])))
