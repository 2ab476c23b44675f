"""The routes of sources as they are declared."""

from typing import Any, Final, Literal

from relay.api.openapi.of_receivers import ETag
from relay.api.openapi.operation import SOURCE, Body, DocumentedResponse, Example, Limit, Operation, Parameter, json_of
from relay.api.problems import (
    CHANGED_MEANWHILE,
    CREDENTIALS_NEEDED,
    DECLARED_IN_FILE,
    INVALID_SOURCE,
    NO_SECRETS_KEY,
    SOURCE_EXISTS,
)
from relay.api.sources import NewSourceView, SourcePage, SourceRemovalView, SourceView
from relay.control.patch import NewSource

_IF_MATCH: Final = Parameter("If-Match", "header", ETag, "An `ETag`: only if the source is still that.")
_ETAG: Final = {"ETag": "Changes with every change of the source."}
_CHANGE: Final = (DECLARED_IN_FILE, CHANGED_MEANWHILE)
_AT: Final = {"source_id": "shop"}
OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/sources",
        id="createSource",
        noun="sources",
        summary="Declare a source",
        description="The fields are those of `receivers.yaml`, and `source_id`. For a `callback` without a `secret` "
        "one is made, which the answer tells, this once.",
        body=json_of(NewSource),
        answers=(
            DocumentedResponse(
                201,
                "It is in force here, and everywhere within 2 s.",
                json_of(NewSourceView),
                {"Location": "Of the source.", **_ETAG},
            ),
        ),
        problems=(INVALID_SOURCE, SOURCE_EXISTS, NO_SECRETS_KEY),
        example=Example(
            201,
            body={
                "source_id": "billing",
                "callback": {"url": "https://sender.example/results", "secret": "${DEPLOY_SECRET}"},
                "answers": "non_empty",
            },
        ),
    ),
    Operation(
        method="GET",
        path="/v1/sources",
        id="listSources",
        noun="sources",
        summary="The sources that are declared",
        description="Others may send messages as well: what is said of `*` holds for them, or the defaults.",
        parameters=(
            Parameter("declared_by", "query", Literal["file", "api"], "Those that came from there."),
            Parameter("limit", "query", Limit, "So many at most; usually 50."),
            Parameter("cursor", "query", str, "Of the page before: what follows it."),
        ),
        answers=(DocumentedResponse(200, "In the order of their ids.", json_of(SourcePage)),),
        example=Example(200, query={"declared_by": "api", "limit": "10"}),
    ),
    Operation(
        method="GET",
        path="/v1/sources/{source_id}",
        id="getSource",
        noun="sources",
        summary="What is declared of a source",
        parameters=(SOURCE,),
        answers=(DocumentedResponse(200, "As it is now.", json_of(SourceView), _ETAG),),
        example=Example(200, path=_AT),
    ),
    Operation(
        method="PATCH",
        path="/v1/sources/{source_id}",
        id="changeSource",
        noun="sources",
        summary="Change some settings of a source",
        description="A JSON merge patch (RFC 7396): what it does not name stays, `null` brings the default back.",
        parameters=(SOURCE, _IF_MATCH),
        body=Body({"application/json": dict[str, Any], "application/merge-patch+json": dict[str, Any]}),
        answers=(DocumentedResponse(200, "As it is now.", json_of(SourceView), _ETAG),),
        problems=(INVALID_SOURCE, NO_SECRETS_KEY, CREDENTIALS_NEEDED, *_CHANGE),
        example=Example(200, path=_AT, body={"failures": False}),
    ),
    Operation(
        method="DELETE",
        path="/v1/sources/{source_id}",
        id="removeSource",
        noun="sources",
        summary="Remove what is declared of a source",
        description="Its results are not POSTed any more; nothing of its messages is lost.",
        parameters=(
            SOURCE,
            _IF_MATCH,
            Parameter("dry_run", "query", bool, "Only tell what becomes of its results."),
        ),
        answers=(DocumentedResponse(200, "What becomes of its results.", json_of(SourceRemovalView)),),
        problems=_CHANGE,
        example=Example(200, path=_AT, query={"dry_run": "true"}),
    ),
)
