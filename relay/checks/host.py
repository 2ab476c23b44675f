"""Checks of this machine alone: settings, versions, descriptors and the data directory."""

import os
import platform
import shutil
import ssl
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from relay.checks.context import Check, CheckContext
from relay.config.limits import descriptor_limit
from relay.config.settings import Settings
from relay.delivery.egress import requests_of
from relay.domain.diagnosis import Checked, error, fine, warning
from relay.domain.errors import UserError

_GIB: Final = 1024**3
FULL_BYTES: Final = 100 * 1024**2
FEW_SEATS: Final = 500
_OPENSSL: Final = (3, 0)
_PYTHON_UNTIL: Final = {
    (3, 11): date(2027, 10, 31),
    (3, 12): date(2028, 10, 31),
    (3, 13): date(2029, 10, 31),
    (3, 14): date(2030, 10, 31),
}
"""The date until which each release gets fixes. Source: the developer's guide of Python, "Status of Python
versions"."""


# --- settings -----------------------------------------------------------------------------------------------------


@Check("settings")
async def inspect_settings(case: CheckContext) -> list[Checked]:
    """Every setting, and the receivers file."""
    if case.mistakes:
        return unusable(case.mistakes)
    file = case.settings.receivers_file
    of_file = f"{file} is well-formed" if file.exists() else f"there is no {file}"
    return [fine("settings", f"{len(case.settings.model_fields_set)} set, the others have their defaults; {of_file}")]


def unusable(mistakes: Sequence[str]) -> list[Checked]:
    """Settings, or a receivers file, with which no process starts."""
    return [error("settings", mistake, "relay config check") for mistake in mistakes]


# --- software -----------------------------------------------------------------------------------------------------


@Check("software")
async def inspect_software(case: CheckContext) -> list[Checked]:
    """The versions of Python and OpenSSL in use."""
    today = datetime.fromtimestamp(case.clock.wall(), UTC).date()
    return judge_software(sys.version_info[:2], ssl.OPENSSL_VERSION_INFO[:2], today)


def judge_software(python: tuple[int, int], openssl: tuple[int, int], today: date) -> list[Checked]:
    text = f"Python {platform.python_version()}, {ssl.OPENSSL_VERSION}"
    found = []
    until = _PYTHON_UNTIL.get(python)
    if until is not None and today > until:
        what = f"Python {python[0]}.{python[1]} has had no fixes since {until}"
        found.append(warning("software", what, "upgrade Python"))
    if openssl < _OPENSSL:
        what = f"OpenSSL {openssl[0]}.{openssl[1]} no longer gets fixes"
        found.append(warning("software", what, "upgrade to OpenSSL 3 or newer"))
    return found or [fine("software", text)]


# --- descriptors --------------------------------------------------------------------------------------------------


@Check("descriptors")
async def inspect_descriptors(case: CheckContext) -> list[Checked]:
    """The limit of open files and connections, compared with the requests that may be in flight."""
    return [judge_descriptors(case.settings, descriptor_limit())]


def judge_descriptors(settings: Settings, descriptors: int) -> Checked:
    """`descriptors`: the process's limit."""
    todo = "raise `ulimit -n` to 65536 (LimitNOFILE=65536 of systemd) where the relay is started"
    try:
        seats = requests_of(settings, descriptors)
    except UserError as wrong:
        return error("descriptors", str(wrong), todo)
    text = f"{descriptors:,} descriptors, so at most {seats:,} requests in flight"
    if seats < FEW_SEATS and settings.max_requests is None:
        return warning("descriptors", f"{text}: a few slow receivers use all of them", todo)
    return fine("descriptors", text)


# --- the data directory -------------------------------------------------------------------------------------------


class Disk(NamedTuple):
    """Bytes."""

    total: int
    free: int


@Check("data")
async def inspect_data(case: CheckContext) -> list[Checked]:
    """The data directory of an embedded relay, or of a history in SQLite: rights and free space."""
    file = sqlite_file(case.settings)
    stops = {} if file is None else {file.parent: "the history will not be written"}
    if case.data_dir is not None:
        stops[case.data_dir.resolve()] = "new messages will be rejected"
    return [_directory(directory, stopped) for directory, stopped in stops.items()]


def sqlite_file(settings: Settings) -> Path | None:
    """The file of a history in SQLite; None if there is none."""
    url = "" if settings.history_url is None else settings.history_url.get_secret_value()
    return Path(unquote(urlsplit(url).path)) if url.startswith("sqlite:") else None


def _directory(directory: Path, stopped: str) -> Checked:
    if not directory.is_dir():
        return error("data", f"{directory} does not exist", f"mkdir -p {directory}")
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return error("data", f"{directory} cannot be written to by this user", f"chown or chmod {directory}")
    usage = shutil.disk_usage(directory)
    return judge_disk(directory, Disk(usage.total, usage.free), stopped)


def judge_disk(directory: Path, disk: Disk, stopped: str) -> Checked:
    """`stopped`: the consequence of a full disk."""
    text = f"{directory}: {disk.free / _GIB:.1f} GiB of {disk.total / _GIB:.1f} GiB are free on its disk"
    if disk.free < FULL_BYTES:
        return error("data", f"{text}: {stopped}", "make room on that disk")
    if disk.free < _GIB or disk.free < disk.total / 10:
        return warning("data", text, "make room on that disk")
    return fine("data", text)
