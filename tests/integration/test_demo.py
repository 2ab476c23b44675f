"""Tests of the commands that a new user tries first, as separate processes."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.planted_defects import plant
from tests.servers.forking import run
from tests.servers.process import RelayProcess, relay_dev


async def test_the_demo_shows_every_message_s_way(tmp_path: Path) -> None:
    async with RelayProcess("demo", cwd=tmp_path) as demo:
        output = await demo.finish()
    assert demo.returncode == 0, output
    assert "ci-now" in output
    assert "failed (exhausted)" in output
    assert "All results arrived" in output
    assert max(map(len, demo.lines)) <= 80, output
    assert "…" not in output
    assert "failed replay" not in output, "its relay is gone when somebody could run that"
    story = [line for line in demo.lines if line[:2].isdigit() and line[8:9] == " "]
    assert story == sorted(story, key=lambda line: line[:8]), output
    of_later = [line for line in story if "event-2" in line]
    assert [line[9:12] for line in of_later] == ["-->", *["<--"] * 4, "<==", "<--"], output
    assert [line.split()[2] for line in story if "sender of" in line] == ["204"] * 3  # a sender has nothing to answer


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[RelayProcess]:
    async with relay_dev(tmp_path, "--data-dir", str(tmp_path / "data")) as process:
        yield process


async def relay(dev: RelayProcess, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """Run a client command against the relay in `dev`."""
    api = ("--api", dev.value_of("API"))
    done = await asyncio.to_thread(run, *arguments, *api, stdin=stdin, together=True)
    return done.returncode, done.stdout


async def test_a_message_sent_by_hand_comes_back_with_its_answer(dev: RelayProcess) -> None:
    sent = ("send", "--source", "github", "--receiver", "demo", "--id", "m-1", "-o", "json")
    code, output = await relay(dev, *sent, "--wait", "20", "-", stdin=b'{"n": 1}')
    assert code == 0, output
    state = json.loads(output)
    assert state["status"] == "response_delivered_to_sender"
    assert json.loads(state["deliveries"][0]["answer"]["body"])["message_id"] == "m-1"
    code, output = await relay(dev, *sent, "-", stdin=b'{"n": 1}')
    assert json.loads(output)["duplicate"] is True
    code, output = await relay(dev, *sent, "-", stdin=b'{"n": 2}')
    assert code == 1
    assert "409" in output


async def test_a_sample_event_and_its_status(dev: RelayProcess) -> None:
    code, output = await relay(dev, "trigger", "github.push", "--receiver", "demo")
    assert code == 0, output
    message_id = output.split()[3]
    await dev.line_with(f"{message_id} from demo: answered 200 verified")
    code, output = await relay(dev, "status", "github", message_id)
    assert code == 0, output
    assert "response_delivered_to_sender" in output


async def test_an_event_for_a_receiver_that_does_not_run_says_so(dev: RelayProcess, tmp_path: Path) -> None:
    (tmp_path / "receivers.yaml").write_text("receivers: {down: {post_endpoint: 'http://127.0.0.1:9/hooks'}}")
    await dev.line_with('"added": ["down"]')
    code, output = await relay(dev, "trigger", "github.push", "--receiver", "down")
    assert code == 0, output
    assert "down waits: retry" in output
    assert "connection refused by 127.0.0.1:9" in output


@pytest.fixture(params=["a trigger does not wait", "a refusal names no address"])
def defect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, request.param)


@pytest.mark.usefixtures("defect")
async def test_a_trigger_that_does_not_say_so_is_found(dev: RelayProcess, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await test_an_event_for_a_receiver_that_does_not_run_says_so(dev, tmp_path)


async def test_what_was_accepted_before_a_kill_is_delivered_after_it(tmp_path: Path) -> None:
    kept = ("--data-dir", str(tmp_path / "data"))
    (tmp_path / "receivers.yaml").write_text(
        "receivers: {down: {post_endpoint: 'http://127.0.0.1:9/hooks', retry: {base: 1, cap: 1}}}"
    )
    async with relay_dev(tmp_path, *kept) as first:
        code, output = await relay(
            first, "send", "--source", "github", "--receiver", "down", "--id", "kept", "-", stdin=b"{}"
        )
        assert code == 0, output
        first.signal(signal.SIGKILL)
        await first.finish()
    sink = tmp_path / "receivers.yaml"
    async with RelayProcess("sink", "--port", "0", cwd=tmp_path) as receiver:
        endpoint = await receiver.line_with("post_endpoint")
        sink.write_text(f"receivers: {{down: {{post_endpoint: '{endpoint.split()[-1]}', retry: {{base: 1, cap: 1}}}}}}")
        async with relay_dev(tmp_path, *kept) as second:
            await receiver.line_with("kept")
            await second.line_with("kept from down: answered 200")


async def test_a_second_relay_on_the_same_directory_is_refused(dev: RelayProcess, tmp_path: Path) -> None:
    async with RelayProcess("dev", "--port", "0", "--data-dir", str(tmp_path / "data"), cwd=tmp_path) as other:
        output = await other.finish()
    assert other.returncode == 2
    assert output.startswith("error: ")
    assert "Traceback" not in output


async def test_a_receivers_file_is_read_again_and_a_bad_one_is_refused(dev: RelayProcess, tmp_path: Path) -> None:
    file = tmp_path / "receivers.yaml"
    file.write_text("receivers: {late: {post_endpoint: 'http://127.0.0.1:9/', orderng: none}}")
    refused = await dev.line_with("receivers_file_refused")
    assert "orderng" in refused
    file.write_text("receivers: {late: {post_endpoint: 'http://127.0.0.1:9/', ordering: none}}")
    await dev.line_with('"added": ["late"]')
    code, output = await relay(dev, "send", "--source", "github", "--receiver", "late", "-", stdin=b"{}")
    assert code == 0, output
    file.write_text("")  # as an editor leaves it for a moment
    await dev.line_with("has no receivers, which would remove all")
    code, output = await relay(dev, "send", "--source", "github", "--receiver", "late", "-", stdin=b"{}")
    assert code == 0, output
