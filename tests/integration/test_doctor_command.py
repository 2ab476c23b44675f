"""Tests of the command `relay doctor`: its output, its exit codes, and the relay that it queries."""

import json
from pathlib import Path
from typing import Any

from tests.integration.production import Rig
from tests.servers.asking import until
from tests.servers.process import RelayProcess, relay_dev

NOWHERE = {
    "RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
    "RELAY_REDIS_URL": "redis://:pa55-word@127.0.0.1:9/0",
    "RELAY_API_KEY": "the-key-of-the-api",
}


async def called(*arguments: str, cwd: Path, environ: dict[str, str]) -> tuple[int | None, str]:
    async with RelayProcess("doctor", *arguments, cwd=cwd, environ=environ) as running:
        output = await running.finish()
    return running.returncode, output


async def as_json(*arguments: str, cwd: Path, environ: dict[str, str]) -> tuple[int | None, dict[str, set[str]]]:
    """Exit code, and the severities by check."""
    code, output = await called(*arguments, "-o", "json", cwd=cwd, environ=environ)
    found: dict[str, Any] = json.loads(output)
    assert found["ok"] == (code == 0)
    severities: dict[str, set[str]] = {}
    for each in found["checks"]:
        severities.setdefault(each["name"], set()).add(each["severity"])
    return code, severities


async def test_it_says_what_it_can_while_nothing_is_there(tmp_path: Path) -> None:
    code, output = await called(cwd=tmp_path, environ=NOWHERE)
    assert code == 1
    lines = output.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("error")] == [["error", "log"], ["error", "state"]]
    assert any("-> start Kafka, or correct RELAY_KAFKA_BOOTSTRAP_SERVERS" in line for line in lines)
    assert lines[-1].startswith("2 errors, ")
    for never in ("\x1b", "pa55-word", "the-key-of-the-api", "Traceback"):
        assert never not in output


async def test_settings_that_cannot_be_read_are_what_is_found(tmp_path: Path) -> None:
    code, output = await called(cwd=tmp_path, environ=NOWHERE | {"RELAY_API_PORT": "none"})
    assert code == 1
    assert "error    settings      RELAY_API_PORT: " in output
    assert (await called("--timeout", "0", cwd=tmp_path, environ={}))[0] == 2
    assert (await called("--roles", "typo", cwd=tmp_path, environ={}))[0] == 2


async def test_a_relay_that_works_has_no_error_from_without_and_from_within(rig: Rig) -> None:
    async with rig.relay("run", "--processes", "1") as running:
        api = json.loads(await running.line_with('"started"'))["api"]

        async def is_served() -> bool:
            return (await as_json(cwd=rig.cwd, environ=rig.environ))[1]["lanes"] == {"ok"}

        await until(is_served)  # it has started, and may not have got its partitions yet
        code, severities = await as_json(cwd=rig.cwd, environ=rig.environ)
        assert code == 0, severities
        expected = ("log", "rights", "state", "recovery", "lanes", "entries", "dns", "address", "connection", "clock")
        assert {name: severities[name] - {"warning"} for name in expected} == {name: {"ok"} for name in expected}
        code, severities = await as_json("--api", api, cwd=rig.cwd, environ=rig.environ)
        assert code == 0, severities
        assert severities["lanes"] == {"ok"}
        code, severities = await as_json("--api", api, "--receiver", "later", cwd=rig.cwd, environ=rig.environ)
        assert (code, "settings" in severities, severities["lanes"]) == (0, False, {"ok"})
        without = {name: value for name, value in rig.environ.items() if name != "CIRCLECI_SECRET"}
        code, output = await called(cwd=rig.cwd, environ=without)
        assert (code, "CIRCLECI_SECRET" in output) == (1, True), output
        assert "receiver_config_entry_refused" not in output, "the name of an event, without its facts"


async def test_a_relay_that_runs_embedded_is_asked_by_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    async with relay_dev(tmp_path, "--no-demo", "--data-dir", directory.name):
        code, severities = await as_json("--data-dir", str(directory), cwd=tmp_path, environ={})
        assert code == 0, severities
        assert severities["lanes"] == {"ok"}
        assert severities["data"] <= {"ok", "warning"}
        code, output = await called("--data-dir", str(directory), cwd=tmp_path, environ={})
        assert "the embedded log" in output
        assert output.count("are free on its disk") == 1, "it has the history, too"
        code, output = await called(cwd=tmp_path, environ={})
        assert "one with another data directory is checked with --data-dir DIRECTORY" in output
    code, output = await called("--data-dir", str(directory), cwd=tmp_path, environ={})
    assert code == 1
    assert "no relay runs on" in output
    assert f"start it: relay dev --data-dir {directory}" in output
