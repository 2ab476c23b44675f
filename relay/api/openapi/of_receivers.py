"""The routes of what is POSTed to: receivers, and the callbacks of sources."""

from collections.abc import Iterator
from typing import Final

from relay.api.openapi.operation import (
    SOURCE,
    Answer,
    Example,
    Operation,
    Parameter,
    ReceiverName,
    json_of,
)
from relay.api.receivers import EndpointView, Why

_HEALTH: Final = (Answer(200, "How it is now.", json_of(EndpointView)),)
_WHY: Final = json_of(Why, required=False)


def _of_endpoint(path: str, of: Parameter, word: str, name: str, example: str) -> Iterator[Operation]:
    at = {of.name: example}
    noun = f"{word}s"
    yield Operation(
        method="GET",
        path=path,
        id=f"get{name}",
        noun=noun,
        summary=f"How a {word} is",
        parameters=(of,),
        answers=_HEALTH,
        example=Example(200, path=at),
    )
    yield Operation(
        method="POST",
        path=f"{path}/pause",
        id=f"pause{name}",
        noun=noun,
        summary=f"Send a {word} nothing until it is resumed",
        description="What is for it waits, and its `max_age` goes on.",
        parameters=(of,),
        body=_WHY,
        answers=_HEALTH,
        example=Example(200, path=at, body={"reason": "it is being moved"}),
    )
    yield Operation(
        method="POST",
        path=f"{path}/resume",
        id=f"resume{name}",
        noun=noun,
        summary=f"Send to a {word} again",
        description="Its breaker is closed, and its outage forgotten.",
        parameters=(of,),
        answers=_HEALTH,
        example=Example(200, path=at),
    )


_NAME: Final = Parameter("name", "path", ReceiverName, "The receiver's name.")
OPERATIONS: Final = (
    *_of_endpoint("/v1/receivers/{name}", _NAME, "receiver", "Receiver", "ci"),
    *_of_endpoint("/v1/sources/{source_id}/callback", SOURCE, "callback", "Callback", "calls"),
)
