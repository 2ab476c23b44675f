"""The answer of a receiver, as the client returns it."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from relay.client.http import ApiResponse


@dataclass(frozen=True, slots=True)
class Answer:
    """The receiver's answer to a message. `outcome`: `answered`, or `delivered` if the receiver took it without an
    answer. `status`: the answer's HTTP status, or None if there is none. `truncated`: only its beginning was kept."""

    outcome: str
    status: int | None
    content_type: str | None
    body: bytes = field(repr=False)
    truncated: bool = False

    def json(self) -> Any:
        """The body, decoded. Raises ValueError if it is not JSON."""
        return msgspec.json.decode(self.body)


def answer_of(response: ApiResponse) -> Answer:
    """The answer in a response that has `relay-outcome`."""
    status = response.headers.get("relay-answer-status")
    return Answer(
        response.headers["relay-outcome"],
        None if status is None else int(status),
        response.headers.get("Content-Type"),
        response.body,
        response.headers.get("relay-answer-truncated") == "true",
    )
