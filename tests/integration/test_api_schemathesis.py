"""Schemathesis against the API, with the API's own document: valid and invalid requests get the documented responses.

It is bounded and repeatable: a fixed seed, and per route a few requests beside the boundary values.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from relay.api import authentication
from tests.integration.api_world import KEY, world

DATA = Path(__file__).parent / "data"
FEW = 1
"""For each route, beside the borders of its values."""


@pytest.mark.timeout(900)
async def test_whatever_is_sent_is_answered_as_the_document_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(authentication, "MOST_FAILED", 1_000_000)  # it tries wrong keys, and is to get a 401 each time
    root = str(DATA.parents[2])
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "tests.integration.data.schemathesis_hooks",
        "PYTHONPATH": root,
        "NO_COLOR": "1",
    }
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(DATA / "schemathesis.toml")]
    options = ["--seed", "1", "--max-examples", str(FEW), "--phases", "examples,coverage,fuzzing", "--warnings", "off"]
    async with world() as rig:
        told = ["run", f"{rig.url}/openapi.json", "-H", f"Authorization: Bearer {KEY}", *options]
        process = await asyncio.create_subprocess_exec(
            *command,
            *told,
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, said.decode()[-20_000:]
    assert b"passed" in said
    assert b"Fuzzing" in said
