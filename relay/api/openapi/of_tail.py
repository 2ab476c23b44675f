"""The route of the live tail."""

from typing import Annotated, Final

from msgspec import Meta

from relay.api.openapi.operation import Body, DocumentedResponse, Example, Operation, Parameter
from relay.api.tail.resource import EVENT_STREAM, TailEvent
from relay.domain.identity import MAX_ID_BYTES

_Receiver = Annotated[str, Meta(pattern="^(-|[a-z0-9][a-z0-9-]{0,62})$")]
_Source = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/tail",
        id="tail",
        noun="live tail",
        summary="What happens, while you listen",
        description="Server-sent events, each with JSON as its data. `message`: a message has come, with whom it goes "
        "to. `attempt`: a request was made for one, and what came back. `answer`: an answer is on its way to the "
        "sender. `failed`: a dead letter, as `GET /v1/failed` has it. `listening`: from now on what happens is told; "
        "`away`: the log does not answer, so nothing can be told; `skipped`: `count` records, or events, were left out "
        "as there were too many, or you took them too slowly; `ended`: you may not go on, and `detail` says why. It "
        "ends seconds after the key or session that you ask with, or after 15 minutes, and is to be asked for again "
        "then; nothing is told twice, and nothing that happened in between. Keys of sources see all of these; keys of "
        "receivers what is about them, and no request to a sender.",
        parameters=(
            Parameter("source", "query", list[_Source], "Of these sources."),
            Parameter("receiver", "query", list[_Receiver], "About these receivers; `-`: what never had one."),
            Parameter("type", "query", list[str], "Of these types; a trailing `*` stands for any rest."),
            Parameter("failed", "query", bool, "Only what went wrong."),
        ),
        answers=(DocumentedResponse(200, "The events.", Body({EVENT_STREAM: TailEvent})),),
        example=Example(200, query={"source": "github"}),
    ),
)
