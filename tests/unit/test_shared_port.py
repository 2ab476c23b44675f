"""A port is shared by processes of one installation, and by nothing else."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from relay.api.shared_port import SharedPort, Sharing, check_free, installation_id

HOST = "127.0.0.1"
PRODUCTION = Sharing(installation_id(["b:9092", "a:9092"], ""))
STAGING = Sharing(installation_id(["a:9092", "b:9092"], "staging."))


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def shared(port: int, tmp_path: Path) -> Iterator[SharedPort]:
    """The first process of production."""
    share = SharedPort.join(HOST, port, PRODUCTION, tmp_path)
    yield share
    share.leave()


def _listen(port: int) -> socket.socket:
    return socket.create_server((HOST, port), reuse_port=True)


def test_a_cleaner_of_temporary_files_leaves_the_lock(port: int, shared: SharedPort, tmp_path: Path) -> None:
    """systemd-tmpfiles passes over a folder that a process has locked; without the file no process could join."""
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = SharedPort.join(HOST, port, PRODUCTION, tmp_path)
    second.leave()
    with pytest.raises(BlockingIOError):
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(directory)


def test_the_order_of_the_servers_does_not_matter() -> None:
    assert Sharing(installation_id(["a:9092", " b:9092"], "")) == PRODUCTION != STAGING


def test_another_process_of_the_same_installation_gets_a_share(shared: SharedPort, port: int, tmp_path: Path) -> None:
    with _listen(port):
        second = SharedPort.join(HOST, port, PRODUCTION, tmp_path)
        with _listen(port):
            second.leave()


@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])  # noqa: S104 - the system would share that one, too
def test_another_installation_does_not(shared: SharedPort, port: int, tmp_path: Path, host: str) -> None:
    with _listen(port), pytest.raises(OSError, match="in use by another installation"):
        SharedPort.join(host, port, STAGING, tmp_path)


def test_a_program_without_a_lock_keeps_its_port(port: int, tmp_path: Path) -> None:
    with _listen(port), pytest.raises(OSError, match="in use"):
        SharedPort.join(HOST, port, PRODUCTION, tmp_path)
    check_free(HOST, port)


def test_the_next_owner_of_a_port_may_be_another_installation(port: int, tmp_path: Path) -> None:
    SharedPort.join(HOST, port, PRODUCTION, tmp_path).leave()
    staging = SharedPort.join(HOST, port, STAGING, tmp_path)
    with pytest.raises(OSError, match="in use by another installation"):
        SharedPort.join(HOST, port, PRODUCTION, tmp_path)
    staging.leave()


def test_any_process_is_for_those_that_have_no_lock(port: int, tmp_path: Path) -> None:
    """A process of a release without locks has the port; from the next one on, locks say whose it is."""
    with _listen(port):
        first = SharedPort.join(HOST, port, replace(PRODUCTION, any_process=True), tmp_path)
        second = SharedPort.join(HOST, port, PRODUCTION, tmp_path)
        with pytest.raises(OSError, match="in use by another installation"):
            SharedPort.join(HOST, port, STAGING, tmp_path)
        second.leave()
        first.leave()


# --- drawn ----------------------------------------------------------------------------------------------------------


def comings_and_goings(port: int, directory: Path, seed: int) -> None:
    """Processes of two installations, and a program that has no lock, come and go as drawn."""
    draw, running = Random(seed), list[tuple[Sharing | None, ExitStack]]()
    with ExitStack() as left:
        for _ in range(30):
            if running and draw.random() < 0.4:
                running.pop(draw.randrange(len(running)))[1].close()
                continue
            process, wanted = left.enter_context(ExitStack()), draw.choice((PRODUCTION, STAGING, None))
            others = {owner for owner, _ in running} - {wanted}
            if wanted is None and running:
                continue
            try:
                if wanted is not None:
                    process.callback(SharedPort.join(HOST, port, wanted, directory).leave)
            except OSError:
                assert others, f"seed {seed}: refused, and no other has the port"
            else:
                process.enter_context(_listen(port))
                running.append((wanted, process))
                assert not others, f"seed {seed}: two share the port"


def test_a_port_has_one_owner_at_a_time(port: int, tmp_path: Path) -> None:
    for seed in range(20):
        comings_and_goings(port, tmp_path, seed)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("_enter", lambda *_: None),  # as before there were locks
        ("check_free", lambda *_: None),
        ("os.pread", lambda *_: PRODUCTION.installation.encode()),
        ("os.pwrite", lambda *_: 0),
    ],
)
def test_a_planted_hole_is_found(
    monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path, name: str, planted: object
) -> None:
    monkeypatch.setattr(f"relay.api.shared_port.{name}", planted)
    with pytest.raises(AssertionError, match=r"two share the port|no other has the port"):
        test_a_port_has_one_owner_at_a_time(port, tmp_path)
