"""This release and the last one read what the other has written into Redis, and both write the same.

Where this fails because a layout has changed on purpose, `FORM` in _memory.lua has to rise, by the rules of
docs/upgrading.md. Additional keys are no such change.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import DecodeError, msgpack
from redis import Redis

from tests.servers.release import Release
from tests.servers.release import last_release as last_release
from tests.servers.valkey import ValkeyServer

SCRIPT = str(Path(__file__).parent / "stored_state.py")
ROOT = str(Path(__file__).parents[2])
NOT_STORED = {"pass", "form"}
"""Each pass has another name, and earlier releases do not store the form."""


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def ran(what: str, server: ValkeyServer, prefix: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, what, server.url, prefix]
    return subprocess.run(command, capture_output=True, text=True, cwd=server.directory, env=environ)


def run(what: str, server: ValkeyServer, prefix: str, environ: dict[str, str]) -> list[str]:
    done = ran(what, server, prefix, environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def content(client: Any, prefix: str) -> dict[str, Any]:
    """By key without the prefix, all that is there; maps and arrays taken apart."""
    read: dict[str, Any] = {
        "string": lambda key: client.get(key),
        "hash": lambda key: client.hgetall(key),
        "set": lambda key: client.smembers(key),
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return {
        key.decode().removeprefix(prefix): _apart(read[client.type(key).decode()](key))
        for key in client.keys(f"{prefix}*")
    }


def _apart(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _apart(each) for name, each in value.items()}
    if not isinstance(value, bytes):
        return value
    first, newline, rest = value.partition(b"\n")
    if newline and first.startswith(b"ready "):
        return first, {name: each for name, each in _lenient(rest).items() if name not in NOT_STORED}
    try:
        return _lenient(value) if value[:1] >= b"\x80" else value
    except (DecodeError, UnicodeDecodeError):
        return value


def _lenient(data: bytes) -> Any:
    return msgpack.decode(data)


def test_each_reads_what_the_other_has_written_and_writes_it_likewise(
    server: ValkeyServer, last_release: Release
) -> None:
    last, this = last_release.environ, {"PYTHONPATH": ROOT}
    for prefix, writer in (("last.", last), ("this.", this)):
        run("begin", server, prefix, last)
        run("fill", server, prefix, writer)
    client = Redis.from_url(server.url)
    try:
        of_last, of_this = content(client, "last."), content(client, "this.")
    finally:
        client.close()
    assert len(of_last) > 64
    assert {key: of_this.get(key) for key in of_last} == of_last
    for reader in (last, this):
        known = run("show", server, "last.", reader)
        assert len(known) > 40
        assert run("show", server, "this.", reader) == known


def test_the_last_release_leaves_the_rows_of_a_new_installation_as_they_are(
    server: ValkeyServer, last_release: Release
) -> None:
    for what in ("begin", "fill"):
        run(what, server, "new.", {"PYTHONPATH": ROOT})
    client = Redis.from_url(server.url)
    try:
        before = content(client, "new.")
        refused = ran("fill", server, "new.", last_release.environ)
        assert "data string too short" in refused.stderr
        assert content(client, "new.") == before
    finally:
        client.close()
