"""The load, as a process of its own: messages at a fixed rate, whatever becomes of them (an open loop).

Its one argument is a job as JSON (see Job). It says `{"ready": true}`, starts at the first line on stdin, reports its
progress five times a second and, with `"done": true`, at the end; it stays until stdin is closed, so that its CPU time
can be read.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from math import ceil
from typing import Final, Protocol

import uvloop

from bench.drawing import Drawing
from bench.wire import Payloads

_REPORT_S: Final = 0.2


_ROUNDING: Final = 1e-6
"""Of a message: what floating point may take away from one that is due exactly now."""


class Pace:
    """When the messages of an open loop are due, in nanoseconds since its start. `rate` messages a second, sent
    together by slices of `slice_s` at least: message n is meant for n / rate."""

    def __init__(self, rate: float, slice_s: float) -> None:
        self._rate = rate
        self._slice_ns = slice_s * 1e9

    def meant(self, number: int) -> int:
        """When message `number` should be sent."""
        return int(number / self._rate * 1e9)

    def due(self, elapsed_ns: int) -> int:
        """How many messages should have been sent by now."""
        return int(elapsed_ns * self._rate / 1e9 + _ROUNDING) + 1

    def next_look(self, elapsed_ns: int, sent: int) -> int:
        """When to send again: in the next slice, but not before a message is due. At that moment one is."""
        next_slice = ceil((elapsed_ns // self._slice_ns + 1) * self._slice_ns)
        return max(next_slice, ceil(sent / self._rate * 1e9))


@dataclass(frozen=True, slots=True)
class Job:
    """`count` messages from serial `first` on, at `rate` a second; 0: as fast as they are accepted.

    `target`: host:port of Kafka (`via` kafka), or the URL of the relay's API (`via` http or http-batch). `slice_s`:
    interval of sending; messages wait up to so long, and that wait counts as latency.
    """

    via: str
    target: str
    topic: str
    sources: int
    receivers: int
    payload: int
    first: int
    count: int
    rate: float
    slice_s: float = 0.005

    def as_json(self) -> str:
        return json.dumps(asdict(self))


class Outlet(Protocol):
    """Where messages go. `acked`: how many have been taken for good; `failed`: how many were refused. `produced`:
    requests to Kafka that it took."""

    acked: int
    failed: int
    produced: int

    async def start(self) -> None: ...

    async def send(self, first: int, times_ns: list[int]) -> None:
        """Messages with serials from `first` on, one for each intended time. May return before they are taken."""
        ...

    async def flush(self) -> None:
        """Wait until all are taken."""
        ...

    async def close(self) -> None: ...


class Generator:
    """A running job. `sent`: messages handed over so far."""

    def __init__(self, job: Job, outlet: Outlet) -> None:
        self._job = job
        self._outlet = outlet
        self.sent = 0

    async def run(self) -> None:
        await (self._paced() if self._job.rate else self._flood())
        await self._outlet.flush()

    async def _paced(self) -> None:
        """At low rates a message is sent at its very time; at high rates a slice's cost is shared by its messages."""
        job = self._job
        pace = Pace(job.rate, job.slice_s)
        start = look = time.time_ns()
        while self.sent < job.count:
            left = look - time.time_ns()
            if left > 0:  # also after a sleep, which may end a little early
                await asyncio.sleep(left / 1e9)
                continue
            due = min(job.count, pace.due(time.time_ns() - start))
            times = [start + pace.meant(number) for number in range(self.sent, due)]
            await self._outlet.send(job.first + self.sent, times)
            self.sent = due
            look = start + pace.next_look(time.time_ns() - start, self.sent)

    async def _flood(self) -> None:
        job, step = self._job, 500
        while self.sent < job.count:
            size = min(step, job.count - self.sent)
            await self._outlet.send(job.first + self.sent, [time.time_ns()] * size)
            self.sent += size
            await self._outlet.flush()


def _say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def _report(generator: Generator, outlet: Outlet) -> None:
    while True:
        await asyncio.sleep(_REPORT_S)
        _say(sent=generator.sent, acked=outlet.acked, failed=outlet.failed, produced=outlet.produced)


async def work(job: Job, outlet: Outlet) -> None:
    """The process's life, as this module says."""
    await outlet.start()
    loop = asyncio.get_running_loop()
    generator = Generator(job, outlet)
    _say(ready=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    reporting = asyncio.create_task(_report(generator, outlet))
    try:
        await generator.run()
    finally:
        reporting.cancel()
    _say(sent=generator.sent, acked=outlet.acked, failed=outlet.failed, produced=outlet.produced, done=True)
    await loop.run_in_executor(None, sys.stdin.read)
    await outlet.close()


def _outlet(job: Job) -> Outlet:
    drawing, payloads = Drawing(job.sources, job.receivers), Payloads(job.payload)
    if job.via == "kafka":
        from bench.kafka_outlet import KafkaOutlet

        return KafkaOutlet(job.target, job.topic, drawing, payloads)
    from bench.http_outlet import HttpOutlet

    return HttpOutlet(job.target, drawing, payloads, batches=job.via == "http-batch")


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(job, _outlet(job)))


if __name__ == "__main__":
    main()
