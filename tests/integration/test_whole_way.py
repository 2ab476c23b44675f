"""Tests of docs/whole-way.md: its curl commands create a key, verify a receiver, return an answer, and find, fix and
replay a failure."""

import asyncio
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.documents import fences
from tests.servers.process import RelayProcess, relay_dev

PAGE = Path(__file__).parents[2] / "docs" / "whole-way.md"
TIMEOUT_S = 200.0
ADDRESSES = "api=http://127.0.0.1:8080 receiver=http://127.0.0.1:9000"
END = "--- end of a block ---"


def blocks() -> list[str]:
    """The commands, those of a fence together."""
    return [fence.text for fence in fences(PAGE)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_whole_way_is_as_the_page_says(tmp_path: Path) -> None:
    said = blocks()
    assert [ADDRESSES in said[0], "received" in said[-1]] == [True, True]
    async with (
        relay_dev(tmp_path, "--data-dir", str(tmp_path / "data")) as relay,
        RelayProcess("sink", "--port", "0", cwd=tmp_path) as receiver,
    ):
        at = (await receiver.line_with("post_endpoint")).split()[-1].removesuffix("/hooks")
        said[0] = said[0].replace(ADDRESSES, f"api={relay.value_of('API')} receiver={at}")
        # the list of dead letters follows the log, and a job goes on after its 202
        said[5] = until("$api/v1/failed", '"message_id"', 2) + said[5]
        said[-1] = until("$receiver/received", '"answered":200', 3) + said[-1]
        outputs = await run("set -eu\n" + f"echo\necho '{END}'\n".join(said))
    _, key, registered, sent, broken, why, mended, received = outputs
    assert key.strip() == ""
    shop, verified = documents(registered)
    assert (shop["name"], shop["settings"]["verification"]) == ("shop", "challenge")
    assert verified["verification"]["state"] == "verified"
    assert statuses(sent) == [200]
    assert documents(sent)[-1]["message_id"] == "first"
    assert statuses(broken) == [502, 502]
    assert [document["reason"] for document in documents(broken)[1:]] == ["rejected"] * 2
    message, failed = documents(why)
    assert "422" in message["deliveries"][0]["detail"]
    assert sorted(letter["message_id"] for letter in failed["items"]) == ["second", "third"]
    assert statuses(mended) == [200]
    assert documents(mended)[1]["message_id"] == "second"
    [told] = documents(received)
    answered = Counter(item["message_id"] for item in told["items"] if item["answered"] == 200)
    assert answered == {"first": 1, "second": 1, "third": 1}


def until(url: str, text: str, count: int) -> str:
    """Commands that wait until the response of `url` contains `text` so often."""
    return f"until [ $(curl -s {url} -H \"$auth\" | grep -o '{text}' | wc -l) = {count} ]; do sleep 0.1; done\n"


async def run(script: str) -> list[str]:
    """Run the blocks in a shell, which has to succeed. Returns the output of each."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await shell.communicate()
    finally:
        if shell.returncode is None:
            shell.kill()
    assert shell.returncode == 0, errors.decode()
    return output.decode().split(f"{END}\n")


def documents(output: str) -> list[Any]:
    """The JSON objects in it, one after the other, between whatever else there is."""
    found, decoder, at = [], json.JSONDecoder(), output.find("{")
    while at >= 0:
        document, end = decoder.raw_decode(output, at)
        found.append(document)
        at = output.find("{", end)
    return found


def statuses(output: str) -> list[int]:
    return [int(status) for status in re.findall(r"HTTP/1\.1 (\d+)", output)]
