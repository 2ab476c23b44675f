"""The routes that need no key, as the request proves itself: webhooks as others send them, and answers by callback."""

from typing import Annotated, Final

from msgspec import Meta

from relay.api.answers import Recorded
from relay.api.inbound import BatchTaken, Probed, WebhookView
from relay.api.openapi.operation import SOURCE, Body, DocumentedResponse, Example, Operation, Parameter, json_of
from relay.api.problems import (
    ANSWER_CLOSED,
    BAD_SIGNATURE,
    ID_CONFLICT,
    INVALID_JSON,
    NO_RECEIVER,
    OVER_QUOTA,
    UNFIT_ID,
    UNKNOWN_RECEIVER,
)

_ANY: Final = {"application/json": None, "application/octet-stream": None}
_OF_GITHUB: Final = (
    Parameter("x-github-event", "header", str, "Of `github`: the type of event."),
    Parameter("x-github-delivery", "header", str, "Of `github`: the message's id."),
    Parameter("x-hub-signature-256", "header", str, "Of `github`: the proof."),
)

OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/in/{source_id}",
        id="takeWebhook",
        noun="webhooks in",
        summary="Take a webhook as its sender signs it",
        description="For sources that have `inbound`: GitHub, Stripe, Slack, Standard Webhooks, CloudEvents, or a "
        "generic HMAC. The signature is looked at before anything else, in the headers that the kind has for it.",
        parameters=(SOURCE, *_OF_GITHUB),
        body=Body(_ANY, required=False),
        answers=(
            DocumentedResponse(
                202, "It is on the log.", json_of((WebhookView, BatchTaken)), {"Location": "The path of the message."}
            ),
            DocumentedResponse(
                200,
                "Not a message: a challenge of the sender is answered, or a probe taken.",
                Body({"text/plain": str, "application/json": Probed}),
            ),
        ),
        problems=(BAD_SIGNATURE, ID_CONFLICT, INVALID_JSON, NO_RECEIVER, UNKNOWN_RECEIVER, UNFIT_ID, OVER_QUOTA),
        example=Example(
            202,
            path={"source_id": "hooks"},
            headers={
                "x-github-event": "push",
                "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
                "x-hub-signature-256": "sha256=7ea048cd006906cc692d743d203bc2ad000ce28dd3c5fa27d28cd05af5e4e1ab",
            },
            body='{"zen": "Keep it logically awesome."}',
        ),
    ),
    Operation(
        method="OPTIONS",
        path="/v1/in/{source_id}",
        id="askToSendWebhooks",
        noun="webhooks in",
        summary="The handshake of CloudEvents",
        parameters=(
            SOURCE,
            Parameter("WebHook-Request-Origin", "header", str, "Who asks to send events here."),
        ),
        answers=(
            DocumentedResponse(
                200,
                "What may be sent, if the source takes CloudEvents.",
                None,
                {
                    "Allow": "The methods of this resource.",
                    "WebHook-Allowed-Origin": "Who asked.",
                    "WebHook-Allowed-Rate": "Requests a minute; `*`: any number.",
                },
            ),
        ),
        example=Example(200, path={"source_id": "hooks"}, headers={"WebHook-Request-Origin": "events.example"}),
    ),
    Operation(
        method="POST",
        path="/v1/answers/{token}",
        id="answerDelivery",
        noun="answers",
        summary="A receiver's answer that comes later",
        description="The URL is the delivery's `relay-answer-url`, and proves who answers. The body is the answer.",
        parameters=(
            Parameter("token", "path", str, "As it came."),
            Parameter(
                "relay-answer-status",
                "header",
                Annotated[int, Meta(ge=100, le=599)],
                "The status of the answer; 200 without it.",
            ),
        ),
        body=Body(_ANY, required=False),
        answers=(
            DocumentedResponse(200, "It is on its way to the sender; or another one was before it.", json_of(Recorded)),
        ),
        problems=(ANSWER_CLOSED,),
        example=Example(
            200, path={"token": "wC7uUWCB--mHirAVG3IKkzAAMTcwMDAwMDA2MABjaQBnaXRodWIAc2VudC0x"}, body={"passed": True}
        ),
    ),
)
