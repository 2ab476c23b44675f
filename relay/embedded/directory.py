"""The data directory of an embedded relay as other processes see it: its default path, its owner, its API's URL."""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from relay.domain.errors import UserError

LOCK: Final = "relay.lock"
FORM: Final = 1
"""The format of everything in the directory but the history, which has a version of its own. Without the file it is
1."""
_FORM_FILE: Final = "form"
_API_URL: Final = "api_url"


def usual_directory(environ: Mapping[str, str], receivers_file: Path) -> Path:
    """Where `relay dev` keeps its data by default: one directory for each folder that holds a receivers file. Raises
    UserError."""
    try:
        folder = receivers_file.absolute().parent.resolve()
    except FileNotFoundError:
        raise UserError("the current directory does not exist any more; change to another one") from None
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.name[:40]) or "root"
    return user_directory(environ) / f"{name}-{digest}"


def user_directory(environ: Mapping[str, str]) -> Path:
    """Where this user's relays keep their data, and where releases up to 0.1 kept that of every `relay dev`."""
    base = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "relay"


def holds_data(directory: Path) -> bool:
    """Whether an embedded relay has run on it."""
    return (directory / _FORM_FILE).exists()


def clear(directory: Path) -> None:
    """Remove all data of an embedded relay. Raises UserError if one is running, or if the directory is not one's."""
    if not directory.exists() or not any(directory.iterdir()):
        return
    if not holds_data(directory):
        raise UserError(f"--fresh: {directory} is not empty, and no data directory of `relay dev`; choose another one")
    if is_taken(directory):
        raise UserError(f"--fresh: a `relay dev` runs on {directory}; end it first")
    for path in directory.iterdir():
        if not (path.is_dir() and holds_data(path)):  # the former directory contains those of the folders
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def is_taken(directory: Path) -> bool:
    """Whether a process uses it."""
    try:
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def check_form(directory: Path) -> None:
    """Store the format. Raises UserError if a newer release has written the directory."""
    path = directory / _FORM_FILE
    said = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else ""
    if not said:  # empty: the disk was full when it was created, or the machine lost power
        path.write_text(f"{FORM}\n", encoding="ascii")
    elif not said.isdecimal() or int(said) > FORM:
        raise UserError(
            f"the data directory {directory} has form {said[:20]!r}: a newer release wrote it, and this one reads forms"
            f" up to {FORM}; use the newer release, or another data directory"
        )


def write_api_url(directory: Path, url: str | None) -> None:
    """Store the API's URL for commands; None: remove it."""
    path = directory / _API_URL
    if url is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(f"{url}\n", encoding="utf-8")


def running_api_url(directory: Path) -> str | None:
    """The URL of the API that the directory's process serves; None if it is not stored."""
    with suppress(OSError, UnicodeDecodeError):
        return (directory / _API_URL).read_text(encoding="utf-8").strip() or None
    return None
