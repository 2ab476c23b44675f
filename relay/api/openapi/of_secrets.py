"""The route that keeps secrets at rest with the newest key."""

from typing import Final

from relay.api.openapi.operation import DocumentedResponse, Example, Limit, Operation, Parameter, json_of
from relay.api.problems import NO_SECRETS_KEY
from relay.api.reencryption import ReencryptionPage

OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/secrets/reencrypt",
        id="reencryptSecrets",
        noun="secrets",
        summary="Encrypt secrets anew with the newest key",
        description="A page of what is declared: each secret that was encrypted with another key than the first of "
        "`RELAY_SECRETS_KEY` is encrypted with that one. Go on with `cursor` until there is none; a repetition finds "
        "nothing to do.",
        parameters=(
            Parameter("limit", "query", Limit, "So many records at most; usually 50."),
            Parameter("cursor", "query", str, "Of the page before: what follows it."),
            Parameter("dry_run", "query", bool, "Only count what would be."),
        ),
        answers=(DocumentedResponse(200, "The page is in force, and on the log.", json_of(ReencryptionPage)),),
        problems=(NO_SECRETS_KEY,),
        example=Example(200, query={"dry_run": "true"}),
    ),
)
