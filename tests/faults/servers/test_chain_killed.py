"""`kill -9` of a relay at every status GET of a chain: each build is started once, and its result comes back."""

import json
import signal
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientSession

from bench.kafka_parts import free_ports
from relay.sink import Sink
from relay.sink.emulators import EMULATORS, Emulator
from tests.servers.process import RelayProcess

CIS: Final = ("jenkins", "circleci")
GETS: Final = 6
"""Of Jenkins: two of the queue, one that the build has left it, two of the running build, one of the finished one."""
PAYLOAD: Final = {"ref": "refs/heads/main", "after": "a" * 40}


def receivers_file(cis: dict[str, Emulator], sender: Sink) -> dict[str, Any]:
    receivers = {
        name: {
            "preset": name,
            "post_endpoint": ci.url,
            "headers": dict([ci.ci.credential]),
            "poll": {"base": 0.1, "factor": 1, "cap": 0.1},
        }
        for name, ci in cis.items()
    }
    return {"sources": {"github": {"callback": {"url": sender.url}}}, "receivers": receivers}


async def send(api: str, message_id: str) -> None:
    url = f"{api}/v1/sources/github/messages"
    query = [("type", "push"), *(("receiver", name) for name in CIS)]
    headers = {"ce-id": message_id}
    async with ClientSession(headers=headers) as session, session.post(url, params=query, json=PAYLOAD) as response:
        assert response.status == 202, await response.text()


async def test_a_relay_that_dies_at_any_step_starts_no_second_build(tmp_path: Path) -> None:
    cis = {name: Emulator(EMULATORS[name], queued_polls=2, running_polls=2) for name in CIS}
    sender = Sink("ok")
    parts: list[Sink | Emulator] = [sender, *cis.values()]
    for part in parts:
        await part.start()
    (tmp_path / "receivers.yaml").write_text(json.dumps(receivers_file(cis, sender)))
    command = ("dev", "--port", str(free_ports(1)[0]), "--data-dir", str(tmp_path / "data"), "--no-demo")
    try:
        for at in range(1, GETS + 1):
            async with RelayProcess(*command, cwd=tmp_path) as relay:
                await relay.line_with("Ready")
                before = len(cis["jenkins"].polls)
                await send(relay.value_of("API"), f"m-{at}")
                await cis["jenkins"].noted(cis["jenkins"].polls, before + at)
                relay.signal(signal.SIGKILL)
                await relay.finish()
            async with RelayProcess(*command, cwd=tmp_path) as relay:
                await relay.line_with("Ready")
                await sender.wait_for(len(CIS) * at)
            assert [len(ci.builds.started) for ci in cis.values()] == [at, at]
    finally:
        for part in parts:
            await part.stop()
    results = {
        (each.headers["relay-message-id"], each.headers["relay-receiver"]): each.body for each in sender.received
    }
    assert results.keys() == {(f"m-{at}", name) for at in range(1, GETS + 1) for name in CIS}
    assert {json.loads(body)["state"] for body in results.values()} == {"success"}
