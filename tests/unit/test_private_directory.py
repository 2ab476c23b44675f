"""Temporary directories of processes that were killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relay.config.private_directory import private_directory

HOLD = """
import os, sys
from relay.config.private_directory import make_private_directory
directory, lock = make_private_directory()
(directory / "secret").write_text("s")
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
print(directory, flush=True)
os.read(0, 1)
"""


def test_it_is_removed_once_the_last_process_that_holds_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foreign = tmp_path / "relay-of-another-release"
    foreign.mkdir()
    (tmp_path / "relay-run-link").symlink_to(foreign)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        process.wait()

        with private_directory() as ours:
            assert left.exists()  # its child goes on
            process.stdin.close()
            process.stdout.read()  # until the child has ended
            with private_directory() as other:
                assert not left.exists()
                assert ours.exists()
                assert other.stat().st_mode & 0o777 == 0o700

    assert {path.name for path in tmp_path.iterdir()} == {foreign.name, "relay-run-link"}
