"""The routes of the API's own keys."""

from typing import Annotated, Final

from msgspec import Meta

from relay.api.keys import PAGES, KeyPage, KeyView, NewKey, Rotation, WantedKey
from relay.api.openapi.operation import DocumentedResponse, Example, Limit, Operation, Parameter, cursor_of, json_of
from relay.api.problems import KEY_EXPIRED, NOT_FOUND, TOO_MANY_KEYS

_NOUN: Final = "keys"
_ID: Final = Parameter("id", "path", Annotated[str, Meta(min_length=1)], "Of the key.")
_KEY: Final = {"id": "k5examplekey"}

OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/keys",
        id="createKey",
        noun=_NOUN,
        summary="Make a key",
        description="The first one needs the scope `admin`: from then on nobody is let in without a key.",
        body=json_of(WantedKey),
        answers=(DocumentedResponse(201, "It is in force; `key` is told only now.", json_of(NewKey)),),
        problems=(TOO_MANY_KEYS, NOT_FOUND),
        example=Example(
            201, body={"name": "ci server", "scopes": ["ingest:github", "read:github"], "expires_in": "90d"}
        ),
    ),
    Operation(
        method="GET",
        path="/v1/keys",
        id="listKeys",
        noun=_NOUN,
        summary="The keys that there are",
        parameters=(
            Parameter("limit", "query", Limit, "So many at most; usually 50."),
            cursor_of(PAGES),
        ),
        answers=(DocumentedResponse(200, "The newest first.", json_of(KeyPage)),),
        problems=(NOT_FOUND,),
        example=Example(200, query={"limit": "10"}),
    ),
    Operation(
        method="DELETE",
        path="/v1/keys/{id}",
        id="revokeKey",
        noun=_NOUN,
        summary="Revoke a key",
        description="In force here with the answer, and everywhere within 2 s.",
        parameters=(_ID,),
        answers=(DocumentedResponse(200, "It was revoked.", json_of(KeyView)),),
        example=Example(200, path=_KEY),
    ),
    Operation(
        method="POST",
        path="/v1/keys/{id}/rotate",
        id="rotateKey",
        noun=_NOUN,
        summary="Give a key a new secret",
        parameters=(_ID,),
        body=json_of(Rotation, required=False),
        answers=(DocumentedResponse(200, "The new secret is in force; `key` is told only now.", json_of(NewKey)),),
        problems=(KEY_EXPIRED, TOO_MANY_KEYS),
        example=Example(200, path=_KEY, body={"overlap": "1d"}),
    ),
)
