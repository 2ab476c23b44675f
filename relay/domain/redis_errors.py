"""Errors of Redis, and of its client library, in plain words. Pure: a class of errors is known by its name."""

import os
import re
from collections.abc import Mapping
from typing import Final

_CONNECTING: Final = re.compile(r"Error (?P<number>-?\d{1,10}) connecting to (?:unix socket: )?(?P<place>\S{1,300})\. ")
"""The client library's words for an error of the operating system, or (a negative number) of its resolver."""
_OF_TLS: Final = re.compile(r"\[[^\]]+\] (?P<why>.+) \(_ssl\.c:\d+\)\.?")
"""The rest of such an error if TLS failed; its number is then none of the operating system."""
_READING: Final = re.compile(r"Error while reading from (?P<place>\S{1,300}) : \((?P<number>\d{1,5}), ")
_SLOT: Final = re.compile(r"(?P<slot>\d{1,5}) (?P<place>\S{1,300})")
_MOVING: Final[Mapping[str, str]] = {"MovedError": "has moved", "AskError": "is being moved"}
_REFUSING: Final[Mapping[str, str]] = {
    "OutOfMemoryError": "the server has reached maxmemory and refuses writes",
    "ReadOnlyError": "the server is a replica and refuses writes",
}
_CLOSED: Final = re.compile(r"Error connecting to (?P<place>\S{1,300})\.")
_WRITING: Final = re.compile(r"Error \S{1,10} while writing to socket\. (?P<why>.+)\.")
_IN_SCRIPT: Final = re.compile(r"^ACL failure in script: | script: (?:\w+, )?on @.*")
"""The parts of an error that name a line of a script."""
_ON_FOREIGN_DATA: Final = re.compile(r"WRONGTYPE |.*user_script:\d+: ")


def plain(error: Exception) -> str:
    """The client library's `error` in a few words, without those of the library."""
    said, kind = str(error), type(error).__name__
    if (failed := _CONNECTING.match(said)) is not None:
        if (tls := _OF_TLS.fullmatch(said[failed.end() :])) is not None:
            return f"TLS with {failed['place']} fails: {tls['why']}"
        number = int(failed["number"])
        why = os.strerror(number) if number > 0 else said[failed.end() :].rstrip(".")
        return f"no server answers at {failed['place']}: {why.lower()}"
    if (failed := _READING.match(said)) is not None:
        return f"{os.strerror(int(failed['number'])).lower()}: {failed['place']}"
    if (failed := _WRITING.fullmatch(said)) is not None:
        return f"the server has closed the connection, as it does at maxclients: {failed['why'].lower()}"
    if said == "Connection closed by server.":
        return "the server has closed the connection, as it does when it stops, or as one with TLS does at redis://"
    if (failed := _CLOSED.fullmatch(said)) is not None:
        return f"{failed['place']} has closed the connection, as a server without TLS does at rediss://"
    if kind == "InvalidResponse":
        return f"another kind of server answers there: {said.removeprefix('Protocol Error: ')}"
    if said == "Timeout connecting to server":
        return "the server does not answer in time, as one without TLS does at rediss://"
    if kind in _MOVING and (moved := _SLOT.fullmatch(said)) is not None:
        return f"slot {moved['slot']} {_MOVING[kind]} to {moved['place']}"
    words = _IN_SCRIPT.sub("", said)
    if _ON_FOREIGN_DATA.match(words) is not None:
        return f"{words}; if another program has overwritten a key of the relay, delete it, and run `relay recover`"
    return _REFUSING.get(kind) or words or kind
