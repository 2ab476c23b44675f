"""What to do about each problem: the text of the page that its `type` leads to.

Reasons of failed deliveries have an entry, too, because the notices to senders link to the same pages.
"""

from typing import Final

from relay.domain.advice import ENDINGS

ADVICE: Final[dict[str, str]] = {
    "invalid-request": (
        "The request has a mistake. `errors` names each place: a header, a query parameter, a part of the path, or a"
        " JSON pointer into the body. Correct these before you repeat it."
    ),
    "invalid-json": (
        "Send valid JSON, or the content type that the payload has. With `RELAY_STRICT_JSON` the relay rejects such"
        " messages; without it, it accepts them with a warning."
    ),
    "unauthorized": "Send the header `Authorization: Bearer <key>` with a key of this API.",
    "forbidden": (
        "The key is valid, but lacks the scope that `detail` names. An administrator can create a key that has it. The"
        " response is the same whether or not the object exists."
    ),
    "invalid-event-type": (
        "`errors` has the place as a JSON pointer into the entry. The cause is a schema that is not JSON Schema"
        " (2020-12), a pattern that RE2 does not support, a `$ref` to another document, or an example that does not"
        " match its schema."
    ),
    "invalid-payload": (
        "This source accepts only payloads that match the schema of their event type. `errors` has the place in the"
        " payload, and `GET /v1/event-types/{type}` the schemas. Correct the payload or its type."
    ),
    "too-many-event-types": "Remove event types that are not used: `relay events delete TYPE`.",
    "endpoint-not-allowed": (
        "A message may name its own endpoint only if an operator has allowed that origin in `RELAY_ADHOC_ENDPOINTS`."
        " Otherwise register a receiver, and name it."
    ),
    "too-many-erasures": (
        "Each erasure counts for 90 days. Erase a whole source or receiver instead of single messages."
    ),
    "too-many-keys": "Revoke keys that are not used: `relay keys list` shows them.",
    "key-expired": "A new secret would expire with the key. Create a new key.",
    "bad-signature": (
        "The signature or credentials of the webhook do not match the settings of its source. Check that both sides"
        " have the same secret, that no proxy changes the body, and that the clocks agree. Nothing was stored."
    ),
    "foreign-origin": (
        "A browser sent this request for a page of another site. Only pages of this API's own public URL may call it;"
        " programs send neither `Origin` nor `Sec-Fetch-Site`."
    ),
    "reserved-source": (
        "The source `relay` is for the relay's own events: receivers may subscribe to it, but senders may not use it."
        " Choose another source id."
    ),
    "not-found": (
        "The path is wrong, or the object that it names never existed, does not exist yet, or was deleted. `detail`"
        " says which."
    ),
    "method-not-allowed": "Use one of the methods in the header `Allow`.",
    "request-timeout": "The body arrived too slowly. Send the request again, without pauses.",
    "not-failed": (
        "Only failed deliveries can be replayed, and only undelivered ones discarded. To send a delivered one once"
        ' more, set `{"only_failed": false}`.'
    ),
    "not-replayable": (
        "It was replayed, discarded or delivered in the meantime, or can no longer be sent; `detail` says which. Look"
        " up the message for its present state."
    ),
    "no-such-number": (
        "Ask with the last number in `relay-sequence`. Only messages of receivers with `ordering: receiver` have"
        " numbers. If the relay has lost its log, its numbers start again: then ask with 0."
    ),
    "already-sent": (
        "Only a delivery without any attempt can be cancelled. To end one that is being retried or waits for its"
        " answer, discard it."
    ),
    "too-many-jobs": "Wait until some jobs have ended, or stop them: `GET /v1/replays` lists them.",
    "receiver-exists": "Choose another name, or change the existing receiver with a `PATCH`.",
    "source-exists": "Change the existing entry with a `PATCH`.",
    "declared-in-file": (
        "This entry is in the receivers file, so the API cannot change it. Edit the file; the relay applies it."
    ),
    "receiver-unverified": (
        "Nothing is sent to a receiver until its URL has passed the verification handshake."
        " `POST /v1/receivers/{name}/verify` runs it at once, and returns what is missing."
    ),
    "credentials-needed": (
        "The change would send a token, header, client secret or client key to another origin (scheme, host and port)"
        " than it was given for. Send each one that `errors` names again in the same request, or remove it with"
        " `null`. This rule does not apply to the receivers file."
    ),
    "no-secrets-key": (
        "The relay encrypts secrets that it gets over the API, but has no key for that. The operator sets"
        " `RELAY_SECRETS_KEY`. Until then a receiver cannot have a secret in plain text, and its `signature` must be"
        " `none`."
    ),
    "changed-meanwhile": (
        "It was changed after you read it. Read it again, and repeat the change if it still applies."
    ),
    "invalid-source": (
        "`errors` names each mistake with a JSON pointer into the body. Nothing was stored. The fields are those of"
        " `receivers.yaml`. The defaults for all sources (`*`) can be set only in that file."
    ),
    "invalid-receiver": (
        "`errors` names each mistake with a JSON pointer into the body. Nothing was stored. The fields are those of"
        " `receivers.yaml`."
    ),
    "too-many-receivers": (
        "Remove receivers that are no longer needed. The operator sets the limit for each owner:"
        " `RELAY_API_OWNER_RECEIVERS`."
    ),
    "answer-closed": (
        "The delivery already has its answer, was given up, or was started again by a replay. Do not repeat the"
        " request; the answer is no longer needed."
    ),
    "answer-gone": "The message was delivered, but so long ago that its answer is no longer in the log.",
    "unsupported-media-type": (
        "Send the body with a content type that this route supports, and without `Content-Encoding`. Routes that"
        " control the relay accept only `application/json`."
    ),
    "unknown-host": (
        "The `Host` of the request is not a name of this API. Use one that is, or add the name to"
        " `RELAY_ALLOWED_HOSTS`."
    ),
    "unfit-id": (
        "The relay asks this receiver about a message at a URL that contains the message id, and this id would change"
        " the path. Choose an id without slashes, backslashes and control characters, even percent-encoded ones, and"
        " none that is `.` or `..`."
    ),
    "no-receiver": (
        "No receiver subscribes to this source and type. Name receivers with `?receiver=`, or add a subscription."
    ),
    "too-many-requests": (
        "Too many wrong keys came from this address. Wait for the seconds in `Retry-After`, and send the right key."
    ),
    "quota-exceeded": (
        "The key or the source has used up its quota. Wait for the seconds in `Retry-After`; the header `RateLimit`"
        " has what is left."
    ),
    "headers-too-large": "Send fewer or shorter headers.",
    "internal-error": (
        "This is a bug in the relay, and is in its log. Repeating the request is safe if the message has an id."
    ),
    "unavailable": (
        "The relay is overloaded, or Kafka, Redis or the history does not answer. Repeat the request after the seconds"
        " in `Retry-After`; that is safe if the message has an id."
    ),
    "no-history": (
        "Lists of messages and attempts come from a history, and this relay has none. The operator sets"
        " `RELAY_HISTORY_URL` (`sqlite:///path` on one machine, or `postgresql://...`) for every process, and runs the"
        " role `history`; `relay dev` does both. It is then filled with everything that the topics still have. Without"
        " a history, a message is found only by its source and id."
    ),
    "payload-gone": (
        "The message arrived, but the retention of `from_sender` is over and its record was deleted. To keep payloads"
        " for longer, the operator raises `RELAY_HISTORY_BODIES` or the retention. `detail` has what is known."
    ),
    # of deliveries
    **{reason.replace("_", "-"): text for reason, text in ENDINGS.items()},
    "delivery-failed": "The delivery was given up. Look up its dead letter, fix the cause, and replay it.",
}
"""Advice by the last part of `type`."""
