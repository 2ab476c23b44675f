"""The route of the audit."""

from typing import Annotated, Final

from msgspec import Meta

from relay.api.audit import CURSOR, AuditPage
from relay.api.openapi.operation import DocumentedResponse, Example, Limit, Operation, Parameter, json_of

_Cursor = Annotated[str, Meta(pattern=f"^{CURSOR}$")]

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/audit",
        id="listAudit",
        noun="audit",
        summary="Who changed what",
        description="A line for each request that changed something, was refused for its rights, or failed in between. "
        "Lines are kept on the topic `audit`, usually for 90 days.",
        parameters=(
            Parameter("limit", "query", Limit, "So many at most; usually 50."),
            Parameter("cursor", "query", _Cursor, "Of the page before: what follows it."),
        ),
        answers=(DocumentedResponse(200, "The newest first.", json_of(AuditPage)),),
        example=Example(200, query={"limit": "10"}),
    ),
)
