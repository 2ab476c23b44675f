"""The plain pipeline, one process of it: the floor of the libraries, with which the relay is compared.

From one topic to a second one, and from there by POST to the receiver that the message names: record by record, as in
the documentation of aiokafka and aiohttp. No state, no order, no retries, no signature, no answers kept; offsets are
committed by the library's timer. Its one argument is a job as JSON (see PlainJob); it prints `started`, and runs until
it is signalled.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

import uvloop
from aiohttp import ClientSession, DummyCookieJar, TCPConnector
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import ConsumerRecord

_IN_FLIGHT: Final = 512
"""As many requests as the caps of the base case allow the relay: 16 receivers with 32 each."""


@dataclass(frozen=True, slots=True)
class PlainJob:
    """From topic `source` to topic `onward`, and from there to `urls`, by the names of receivers."""

    kafka: str
    source: str
    onward: str
    urls: Mapping[str, str]

    def as_json(self) -> str:
        return json.dumps(asdict(self))


async def forward(consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, onward: str) -> None:
    """Each record to the second topic, as it is."""
    async for record in consumer:
        await producer.send(onward, record.value, key=record.key, headers=list(record.headers))


async def deliver(consumer: AIOKafkaConsumer, session: ClientSession, urls: Mapping[str, str]) -> None:
    """Each record to its receiver. Ends with the error of the first request that fails."""
    free = asyncio.Semaphore(_IN_FLIGHT)
    async with asyncio.TaskGroup() as posts:
        async for record in consumer:
            await free.acquire()
            posts.create_task(_post(session, urls, record)).add_done_callback(lambda _: free.release())


async def _post(session: ClientSession, urls: Mapping[str, str], record: ConsumerRecord[bytes, bytes]) -> None:
    headers = dict(record.headers)
    url, kind = urls[headers["ce_receiver"].decode()], headers["content-type"].decode()
    async with session.post(url, data=record.value, headers={"content-type": kind}, allow_redirects=False) as response:
        response.raise_for_status()
        await response.read()


async def run(job: PlainJob) -> None:
    """Until this task is cancelled."""
    consumers = [
        AIOKafkaConsumer(topic, bootstrap_servers=job.kafka, group_id=topic, auto_offset_reset="earliest")
        for topic in (job.source, job.onward)
    ]
    producer = AIOKafkaProducer(bootstrap_servers=job.kafka, acks="all")
    session = ClientSession(connector=TCPConnector(limit=0), cookie_jar=DummyCookieJar())
    try:
        await producer.start()
        for consumer in consumers:
            await consumer.start()
        sys.stdout.write("started\n")
        sys.stdout.flush()
        async with asyncio.TaskGroup() as stages:
            stages.create_task(forward(consumers[0], producer, job.onward))
            stages.create_task(deliver(consumers[1], session, job.urls))
    finally:
        await producer.stop()
        for consumer in consumers:
            await consumer.stop()
        await session.close()


async def _until_told(job: PlainJob) -> None:
    running = asyncio.ensure_future(run(job))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        return


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_told(PlainJob(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
