"""Errors of the client: one tree, below `ClientError`."""

import copyreg
from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """A request failed, for the reason in the message. `busy`: the same request may succeed later, because a part of
    the relay is unavailable or recovering."""

    busy: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        """A pool of processes pickles the errors of its calls, and would call the class with the message alone."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InvalidArgument(ClientError):
    """An argument of the call cannot be used; nothing was sent."""


class RelayUnreachable(ClientError):
    """No relay answers at that address, or the connection broke, also after several tries. `lost`: there was no
    connection, or it broke."""

    def __init__(self, message: str, *, busy: bool = False, lost: bool = False) -> None:
        super().__init__(message)
        self.busy = busy
        self.lost = lost


class NotARelay(RelayUnreachable):
    """Another server answers at that address, or a relay of another version."""


class OtherVersion(NotARelay):
    """A relay of another version answers at that address; it may have done what was requested."""


class WaitTimeout(ClientError):
    """The answer did not arrive in time. The delivery goes on, and the message with these ids can be waited for
    again."""

    def __init__(self, message: str, source_id: str, message_id: str) -> None:
        super().__init__(message)
        self.source_id = source_id
        self.message_id = message_id


class ApiError(ClientError):
    """The API refused the request: problem details (RFC 9457).

    `kind`: the last part of the problem's `type`, for example `not-found`; see docs/reference/problems.md.
    `errors`: the mistakes and their places. `document`: the whole problem. `request`: method and path of the request.
    """

    def __init__(self, status: int, document: Mapping[str, Any], request: str = "", hint: str = "") -> None:
        title, detail = str(document.get("title", "")), str(document.get("detail", ""))
        errors: Sequence[Mapping[str, str]] = document.get("errors") or ()
        if not (isinstance(errors, list) and all(isinstance(each, dict) for each in errors)):  # from a proxy
            errors = ()
        place = errors[0].get("pointer", "") if len(errors) == 1 else ""  # the detail may not name it
        where = f"{place}: " if place and place not in detail else ""
        line = f"{title}: {where}{detail}".strip(": ")
        line = line.removesuffix(".") + hint if hint else line
        super().__init__(f"{request}: {status} {line}" if request else f"{status} {line}")
        self.status = status
        self.kind = str(document.get("type", "")).rpartition("/")[2]
        self.title = title
        self.detail = detail
        self.errors = errors
        self.document = document
        self.request = request
        self.busy = status == 503


class DeliveryFailed(ApiError):
    """The relay gave the delivery up. `reason`: as in docs/reference/reasons.md. `dead_letter`: its path in the API, or
    None if it is not kept."""

    def __init__(self, status: int, document: Mapping[str, Any], request: str = "") -> None:
        super().__init__(status, document, request)
        self.reason: str | None = document.get("reason")
        self.attempts: int | None = document.get("attempts")
        self.last_status: int | None = document.get("last_status")
        self.dead_letter: str | None = document.get("dead_letter")


def is_passing(error: ClientError) -> bool:
    """Whether a stream or a wait that ended with it may be continued."""
    return error.busy or (isinstance(error, RelayUnreachable) and error.lost)
