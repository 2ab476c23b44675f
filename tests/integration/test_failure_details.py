"""Tests of the details of a dead letter: in lists, in the log, and in the failure notice to the sender."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from relay.sink import Sink
from tests.contract.conftest import certificate as certificate
from tests.contract.raw_server import OK, replying, server_context
from tests.integration.test_demo import relay
from tests.servers.asking import until
from tests.servers.http import serving, started
from tests.servers.process import RelayProcess, relay_dev

SOURCE = "builds"
TOKEN = "s3cret-token-0123"


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """A receiver that refuses everything, and repeats the credentials that it got."""

    async def refuse(request: web.Request) -> web.Response:
        body = {"error": "no such branch", "you": request.headers["Authorization"]}
        return web.json_response(body, status=422)

    async with serving(refuse) as url:
        yield f"{url}/hooks?token={TOKEN}"


async def test_the_detail_names_what_happened(tmp_path: Path, certificate: Path, echo: str) -> None:
    """One receiver for each kind of failure, and how its message ends."""
    once = {"retry": {"max_attempts": 1}}
    failing, moved, callback = Sink("fail", fail_status=503), Sink("redirect"), Sink("answer")
    async with (
        started(failing, moved, callback),
        replying(OK).running(context=server_context(certificate)) as tls,
        AsyncExitStack() as stack,
    ):
        receivers: dict[str, dict[str, Any]] = {
            "closed": {"post_endpoint": "http://127.0.0.1:9/hooks"},
            "untrusted": {"post_endpoint": tls.url(scheme="https")},
            "private": {"post_endpoint": "https://10.1.2.3/hooks"},
            "failing": {"post_endpoint": failing.url},
            "moved": {"post_endpoint": moved.url},
            "refusing": {"post_endpoint": echo, "bearer_token": TOKEN},
        }
        declared = {
            "sources": {SOURCE: {"callback": {"url": callback.url}}},
            "receivers": {name: once | entry for name, entry in receivers.items()},
        }
        (tmp_path / "receivers.yaml").write_text(json.dumps(declared))
        dev = await stack.enter_async_context(relay_dev(tmp_path, "--no-demo"))
        for name in receivers:
            sent = ("send", "--source", SOURCE, "--receiver", name, "--id", f"m-{name}", "-")
            code, output = await relay(dev, *sent, stdin=b"{}")
            assert code == 0, output
        await callback.wait_for(len(receivers))
        notices = {arrival.headers["relay-receiver"]: json.loads(arrival.body) for arrival in callback.received}
        check_details({name: notice["detail"] for name, notice in notices.items()}, receivers)
        assert notices["failing"]["last_status"] == 503

        lines = [json.loads(line) for line in await dev.lines_with('"dead_letter"', len(receivers))]
        check_details({line["receiver"]: line["detail"] for line in lines}, receivers)
        for line in lines:
            assert (line["source_id"], line["message_id"]) == (SOURCE, f"m-{line['receiver']}")
            assert line["reason"] in ("exhausted", "rejected")
            assert "status" in line
        await check_commands(dev, receivers)
        assert TOKEN not in "\n".join(dev.lines)


def check_details(details: dict[str, str], receivers: dict[str, dict[str, Any]]) -> None:
    assert details.keys() == receivers.keys()
    for name, words in {
        "closed": ("connection refused by 127.0.0.1:9",),
        "untrusted": ("127.0.0.1", "tls", "certificate verify failed"),
        "private": ("10.1.2.3", "RELAY_ALLOW_PRIVATE_NETWORKS=10.1.2.3/32"),
        "failing": (receivers["failing"]["post_endpoint"], "503", "failed"),
        "moved": ("307, Location: ", "/elsewhere"),
        "refusing": ("127.0.0.1", "422", "no such branch"),
    }.items():
        for word in words:
            assert word in details[name], (name, details[name])
    assert not any(TOKEN in detail for detail in details.values())


async def check_commands(dev: RelayProcess, receivers: dict[str, dict[str, Any]]) -> None:
    """The commands say the same, to people and to programs."""
    letters: list[dict[str, Any]] = []

    async def all_are_listed() -> bool:  # a notice may be back at the sender before its letter is in the index
        code, output = await relay(dev, "failed", "list", "-o", "json")
        assert code == 0
        letters[:] = json.loads(output)["items"]
        return len(letters) == len(receivers)

    await until(all_are_listed)
    check_details({letter["receiver"]: letter["detail"] for letter in letters}, receivers)
    code, table = await relay(dev, "failed", "list")
    assert all(letter["detail"] in table for letter in letters)

    [letter] = [letter for letter in letters if letter["receiver"] == "failing"]
    place = f"{letter['partition']}/{letter['offset']}"
    code, shown = await relay(dev, "failed", "show", place)
    assert code == 0
    assert letter["detail"] in shown
    assert f"relay-first-failed: {letter['failed_at']}" in shown  # a time, not a number
    code, output = await relay(dev, "failed", "show", place, "-o", "json")
    assert json.loads(output)["detail"] == letter["detail"]
    code, output = await relay(dev, "status", SOURCE, "m-failing")
    assert code == 1
    assert letter["detail"] in " ".join(output.split())  # in lines of 80 columns
