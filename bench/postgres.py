"""A private PostgreSQL, for the benchmark and for the tests: Debian's package, files in a short directory of its own, a
unix socket, no port."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from bench.kafka_parts import Unsuitable

_PACKAGES: Final = Path("/usr/lib/postgresql")
_NOT_ROOT: Final = ("postgres", "nobody")
"""It refuses to run as root; one of these does it then."""


def binaries() -> Path | None:
    """Of the newest version that is installed."""
    found = sorted(_PACKAGES.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class Postgres:
    """`start` returns when it answers; `stop` also removes its files. `durable`: as in production; else nothing is
    synced. Raises Unsuitable where it is not installed."""

    def __init__(self, *, durable: bool = False, options: tuple[str, ...] = ()) -> None:
        found = binaries()
        if found is None:
            raise Unsuitable(f"no PostgreSQL in {_PACKAGES}; apt-get install postgresql")
        self._binaries = found
        self.directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # socket paths must be short
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None
        unsafe = () if durable else ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
        settings = ("listen_addresses=", f"unix_socket_directories={self.directory}", *unsafe, *options)
        self._settings = [part for setting in settings for part in ("-c", setting)]

    @property
    def url(self) -> str:
        return f"postgresql://relay@/postgres?host={self.directory}"

    def start(self) -> None:
        data = self.directory / "data"
        if not data.exists():
            if self._user is not None:
                shutil.chown(self.directory, self._user)
            arguments = ["-D", str(data), "-U", "relay", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
            self._run([str(self._binaries / "initdb"), *arguments])
        command = [str(self._binaries / "postgres"), "-D", str(data), *self._settings]
        self._process = subprocess.Popen(  # noqa: S603 - nothing of it comes from outside
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", user=self._user
        )
        seen = b""
        if (stream := self._process.stderr) is not None:
            for line in stream:
                seen += line
                if b"ready to accept connections" in line:
                    stream.close()  # from here on its log has no reader, which it does not mind
                    return
        raise RuntimeError(f"PostgreSQL did not start:\n{seen.decode(errors='replace')}")

    def kill(self) -> None:
        """At once, as in a crash: SIGQUIT to the server, which takes its children along."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd="/", user=self._user)  # noqa: S603 - likewise


def _user() -> str | None:
    """The user that the server runs as; None: our own."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _NOT_ROOT if name in known)
