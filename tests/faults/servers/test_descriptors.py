"""`relay run` with few file descriptors, or none left: no endpoint is charged for it, and everything arrives."""

import json
import resource
from collections import Counter

import aiohttp
import pytest

from relay.sink import Sink
from tests.integration.production import Rig, Sent

pytestmark = pytest.mark.kafka

HANGING, HEALTHY = [f"hangs-{n}" for n in range(24)], [f"well-{n}" for n in range(5)]
FEW = 256
RETRY = {"base": "500ms", "factor": 1, "max_attempts": 3}


def declare(rig: Rig, endpoints: dict[str, str]) -> None:
    receivers = {
        name: {"post_endpoint": url, "lane": "shared", "ordering": "none", "timeout": "60s", "retry": RETRY}
        for name, url in endpoints.items()
    }
    (rig.cwd / "receivers.yaml").write_text(json.dumps({"receivers": receivers}))


def sent(*names: str, count: int, start: int = 0) -> list[Sent]:
    return [
        Sent(number, f"{name}-{number % 7}", name, b"{}") for number in range(start, start + count) for name in names
    ]


async def test_receivers_that_hang_keep_nothing_from_the_others(rig: Rig) -> None:
    """They would take three times the descriptors that there are."""
    hang, well = Sink("hang"), rig.sinks["nostatus"]
    await hang.start()
    declare(rig, dict.fromkeys(HANGING, hang.url) | dict.fromkeys(HEALTHY, well.url))
    rig.environ["RELAY_SHUTDOWN_GRACE"] = "1s"
    try:
        async with rig.relay("run", "--processes", "1", descriptors=FEW) as running:
            api = json.loads(await running.line_with('"started"'))["api"]
            await rig.produce(sent(*HANGING, count=32))
            await rig.produce(sent(*HEALTHY, count=40))
            await rig.until(lambda: len(well.received) >= 200)
            async with aiohttp.ClientSession(api) as session, session.get("/livez") as response:
                assert response.status == 200
            assert await rig.dead_letters(api, 0) == []
            await rig.produce(sent(*HEALTHY, count=40, start=40))
            await rig.until(lambda: len(well.received) >= 400)
        assert Counter(arrival.headers["relay-attempt"] for arrival in well.received) == {"1": 400}
    finally:
        await hang.stop()


async def test_with_no_descriptor_left_it_waits_says_so_once_and_goes_on(rig: Rig) -> None:
    well = rig.sinks["nostatus"]
    declare(rig, dict.fromkeys(HEALTHY, well.url))
    async with rig.relay("run", "--processes", "1") as running:
        api = json.loads(await running.line_with('"started"'))["api"]
        await rig.produce(sent(*HEALTHY, count=10))
        await rig.until(lambda: len(well.received) >= 50)
        allowed = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (3, allowed[1]))
        await rig.produce(sent(*HEALTHY, count=60, start=10))
        await running.line_with("sending_paused")
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, allowed)
        await rig.until(lambda: len(well.received) >= 350)
        assert await rig.dead_letters(api, 0) == []
        assert len([line for line in running.lines if "sending_paused" in line]) == 1
    assert Counter(arrival.headers["relay-attempt"] for arrival in well.received) == {"1": 350}
