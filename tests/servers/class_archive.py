"""Archive of a broker's classes (AppCDS), which halves the CPU of its start. It is made once, beside the jars. The JVM
ignores one of another Java or of other jars. An empty file says that none could be made.
"""

import contextlib
import fcntl
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path


def class_archive(jars: Path, write: Callable[[Path], None]) -> Path | None:
    """None if none could be made. `write`: starts a broker whose JVM archives its classes at that path, and may raise
    RuntimeError."""
    archive = jars.with_name(f"{jars.name}.jsa")
    with archive.with_name(f"{archive.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive, jars, write)
    return archive if archive.stat().st_size else None  # with an empty one, the JVM would not use its own either


def _make(archive: Path, jars: Path, write: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="classes-", dir=archive.parent) as directory:
        made = Path(directory) / archive.name
        with contextlib.suppress(RuntimeError):
            write(made)
        if not _usable(made, jars):  # an incomplete archive crashes the JVM
            made.unlink(missing_ok=True)
            made.touch()
        made.rename(archive)


def _usable(archive: Path, jars: Path) -> bool:
    command = ["java", "-Xshare:on", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}"]
    done = subprocess.run([*command, "-cp", f"{jars}/*", "-version"], capture_output=True, cwd=archive.parent)
    return archive.exists() and done.returncode == 0
