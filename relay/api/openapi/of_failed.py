"""The routes of dead letters, and of what is done about them: one at once, or many as a job."""

from typing import Annotated, Final

from msgspec import Meta

from relay.api.failed import PAGES as FAILED_PAGES
from relay.api.failed import LetterPage, WholeLetter
from relay.api.openapi.of_messages import ANSWERED, PREFER, WAIT
from relay.api.openapi.operation import (
    MESSAGE,
    RECEIVER,
    SOURCE,
    DocumentedResponse,
    Example,
    Limit,
    Operation,
    Parameter,
    cursor_of,
    json_of,
)
from relay.api.problems import NOT_FAILED, NOT_REPLAYABLE, TOO_MANY_JOBS
from relay.api.replay_request import Discards, One, Replays
from relay.api.replay_view import JobPage, JobView, OneView, PreviewView
from relay.api.replays import PAGES, Nothing
from relay.api.wait_response import ANSWER_GONE, FAILURES

_FAILED: Final = "dead letters"
_REPLAYS: Final = "replays"
_PLACE: Final = (
    Parameter("partition", "path", Annotated[int, Meta(ge=0, le=999_999_999)], "Of `failed_messages`."),
    Parameter("offset", "path", Annotated[int, Meta(ge=0, lt=10**18)], "In that partition."),
)
_AT: Final = {"partition": "6", "offset": "0"}
_LIMIT: Final = Parameter("limit", "query", Limit, "So many at most; usually 50.")
_ID: Final = Parameter("id", "path", Annotated[str, Meta(pattern="^[0-9a-f]{1,32}$")], "Of the job.")
_DONE: Final = (DocumentedResponse(202, "It is on its way.", json_of(OneView)),)
_NOTHING: Final = json_of(Nothing, required=False)
_OF_ONE: Final = "/v1/sources/{source_id}/messages/{message_id}/deliveries/{receiver}"
_OF_LETTER: Final = "/v1/failed/{partition}/{offset}"
_FAILED_ONE: Final = {"source_id": "github", "message_id": "failed-1", "receiver": "ci"}
_JOB_ANSWERS: Final = (
    DocumentedResponse(202, "The job, once it is on the log.", json_of(JobView), {"Location": "The path of the job."}),
    DocumentedResponse(200, "With `dry_run`: what it would do.", json_of(PreviewView)),
)

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/failed",
        id="listFailed",
        noun=_FAILED,
        summary="Dead letters that are still somebody's business",
        parameters=(
            Parameter("receiver", "query", list[str], "Of these; `-`: those that never had one."),
            _LIMIT,
            cursor_of(FAILED_PAGES),
        ),
        answers=(DocumentedResponse(200, "The newest first.", json_of(LetterPage)),),
        example=Example(200, query={"receiver": "ci", "limit": "10"}),
    ),
    Operation(
        method="GET",
        path=_OF_LETTER,
        id="getFailed",
        noun=_FAILED,
        summary="One dead letter, with headers and payload",
        parameters=_PLACE,
        answers=(DocumentedResponse(200, "The dead letter.", json_of(WholeLetter)),),
        example=Example(200, path=_AT),
    ),
    Operation(
        method="POST",
        path=f"{_OF_LETTER}/replay",
        id="replayFailed",
        noun=_FAILED,
        summary="Send a dead letter again",
        parameters=_PLACE,
        body=_NOTHING,
        answers=_DONE,
        problems=(NOT_REPLAYABLE,),
        example=Example(202, path=_AT),
    ),
    Operation(
        method="POST",
        path=f"{_OF_LETTER}/discard",
        id="discardFailed",
        noun=_FAILED,
        summary="Say that nobody has to look at a dead letter",
        parameters=_PLACE,
        body=_NOTHING,
        answers=_DONE,
        problems=(NOT_REPLAYABLE,),
        example=Example(202, path=_AT),
    ),
    Operation(
        method="POST",
        path=f"{_OF_ONE}/replay",
        id="replayDelivery",
        noun=_REPLAYS,
        summary="Send a delivery again",
        parameters=(SOURCE, MESSAGE, RECEIVER, WAIT, PREFER),
        body=json_of(One, required=False),
        answers=(*_DONE, ANSWERED),
        problems=(NOT_FAILED, NOT_REPLAYABLE, ANSWER_GONE, *FAILURES),
        example=Example(202, path=_FAILED_ONE, body={"only_failed": True}),
    ),
    Operation(
        method="POST",
        path=f"{_OF_ONE}/discard",
        id="discardDelivery",
        noun=_REPLAYS,
        summary="Give a delivery up, or its dead letter",
        parameters=(SOURCE, MESSAGE, RECEIVER),
        body=_NOTHING,
        answers=_DONE,
        problems=(NOT_FAILED, NOT_REPLAYABLE),
        example=Example(202, path=_FAILED_ONE),
    ),
    Operation(
        method="POST",
        path="/v1/replays",
        id="beginReplay",
        noun=_REPLAYS,
        summary="Send many again",
        description="A job, which survives restarts and sends each once. `dry_run` counts first.",
        body=json_of(Replays, required=False),
        answers=_JOB_ANSWERS,
        problems=(TOO_MANY_JOBS,),
        example=Example(202, body={"receiver": "ci", "since": "2d", "rate": 10}),
    ),
    Operation(
        method="POST",
        path="/v1/discards",
        id="beginDiscard",
        noun=_REPLAYS,
        summary="Discard many",
        body=json_of(Discards, required=False),
        answers=_JOB_ANSWERS,
        problems=(TOO_MANY_JOBS,),
        example=Example(200, body={"receiver": "ci", "reason": "rejected", "dry_run": True}),
    ),
    Operation(
        method="GET",
        path="/v1/replays",
        id="listJobs",
        noun=_REPLAYS,
        summary="Jobs that replay or discard",
        parameters=(_LIMIT, cursor_of(PAGES)),
        answers=(DocumentedResponse(200, "The newest first.", json_of(JobPage)),),
        example=Example(200, query={"limit": "10"}),
    ),
    Operation(
        method="GET",
        path="/v1/replays/{id}",
        id="getJob",
        noun=_REPLAYS,
        summary="How far a job is",
        parameters=(_ID,),
        answers=(DocumentedResponse(200, "The job.", json_of(JobView)),),
        example=Example(200, path={"id": "5f0c2ba7d1e94c36"}),
    ),
    Operation(
        method="POST",
        path="/v1/replays/{id}/stop",
        id="stopJob",
        noun=_REPLAYS,
        summary="Stop a job",
        description="What was sent stays sent.",
        parameters=(_ID,),
        body=None,
        answers=(
            DocumentedResponse(202, "It stops.", json_of(JobView)),
            DocumentedResponse(200, "It was over already.", json_of(JobView)),
        ),
        example=Example(202, path={"id": "5f0c2ba7d1e94c36"}),
    ),
)
