"""The routes of sessions and of links into the portal."""

from typing import Final

from relay.api.openapi.operation import DocumentedResponse, Example, Operation, json_of
from relay.api.problems import FORBIDDEN, TOO_MANY, TOO_MANY_KEYS, UNAUTHORIZED, UNKNOWN_RECEIVER
from relay.api.sessions import EndedSession, NewLink, NewSession, SessionView, WantedLink, WantedSession

_NOUN: Final = "sessions"

OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/sessions",
        id="createSession",
        noun=_NOUN,
        summary="Make a session with a key",
        description=(
            "The key is that of the header, or `key` in the body. The session may what the key may, and ends with it. "
            "While no key was made, none is needed."
        ),
        body=json_of(WantedSession, required=False),
        answers=(
            DocumentedResponse(201, "It is good from now on; send `token` as a key is sent.", json_of(NewSession)),
        ),
        problems=(UNAUTHORIZED, FORBIDDEN, TOO_MANY),
        example=Example(201, body={"key": "the key of the examples", "expires_in": "12h"}),
    ),
    Operation(
        method="GET",
        path="/v1/session",
        id="getSession",
        noun=_NOUN,
        summary="Who am I",
        answers=(DocumentedResponse(200, "Who calls, and what they may do.", json_of(SessionView)),),
        example=Example(200),
    ),
    Operation(
        method="DELETE",
        path="/v1/session",
        id="endSession",
        noun=_NOUN,
        summary="End the session",
        description="The one that the request comes with. In force here with the answer, and everywhere within 2 s.",
        answers=(DocumentedResponse(200, "Whether it has ended: a key, or a link, does not.", json_of(EndedSession)),),
        problems=(TOO_MANY_KEYS, TOO_MANY),
        example=Example(200),
    ),
    Operation(
        method="POST",
        path="/v1/portal-links",
        id="createPortalLink",
        noun=_NOUN,
        summary="Make a link into the portal",
        description=(
            "Whoever has the link sees, and may do, what this owner may, until it is over, or the key that made it is "
            "revoked. With `owner:<id>` one makes links for oneself."
        ),
        body=json_of(WantedLink),
        answers=(DocumentedResponse(201, "The link.", json_of(NewLink)),),
        problems=(UNKNOWN_RECEIVER,),
        example=Example(201, body={"owner": "team-42", "hours": 24}),
    ),
)
