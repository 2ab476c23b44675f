"""The kinds of problem, each with what to do about it, and the error that ends a request with one.

`type` is a relative reference, `/problems/<name>`: names are part of the API, the text beside them is for people.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from relay.domain.errors import InvalidRecord, RelayError
from relay.domain.reasons import REASONS

RETRY_AFTER_S: Final = 2
"""Sent to clients while Kafka or Redis is away: a failover takes seconds."""


class ProblemKind(NamedTuple):
    """A kind of problem. `name`: the last part of its `type`. `advice`: what to do about it, for the page that `type`
    leads to."""

    name: str
    status: int
    title: str
    advice: str


INVALID: Final = ProblemKind(
    "invalid-request",
    400,
    "The request is not valid",
    "The request has a mistake. `errors` names each place: a header, a query parameter, a part of the path, or a"
    " JSON pointer into the body. Correct these before you repeat it.",
)
INVALID_JSON: Final = ProblemKind(
    "invalid-json",
    400,
    "The payload is not valid JSON",
    "Send valid JSON, or the content type that the payload has. With `RELAY_STRICT_JSON` the relay rejects such"
    " messages; without it, it accepts them with a warning.",
)
UNAUTHORIZED: Final = ProblemKind(
    "unauthorized",
    401,
    "An API key is required",
    "Send the header `Authorization: Bearer <key>` with a key of this API.",
)
BAD_SIGNATURE: Final = ProblemKind(
    "bad-signature",
    401,
    "The webhook cannot be authenticated",
    "The signature or credentials of the webhook do not match the settings of its source. Check that both sides"
    " have the same secret, that no proxy changes the body, and that the clocks agree. Nothing was stored.",
)
FORBIDDEN: Final = ProblemKind(
    "forbidden",
    403,
    "The key may not do this",
    "The key is valid, but lacks the scope that `detail` names. An administrator can create a key that has it. The"
    " response is the same whether or not the object exists.",
)
FOREIGN_ORIGIN: Final = ProblemKind(
    "foreign-origin",
    403,
    "The request comes from a page of another origin",
    "A browser sent this request for a page of another site. Only pages of this API's own public URL may call it;"
    " programs send neither `Origin` nor `Sec-Fetch-Site`.",
)
NOT_FOUND: Final = ProblemKind(
    "not-found",
    404,
    "Not found",
    "The path is wrong, or the object that it names never existed, does not exist yet, or was deleted. `detail`"
    " says which.",
)
WRONG_METHOD: Final = ProblemKind(
    "method-not-allowed",
    405,
    "The resource does not support this method",
    "Use one of the methods in the header `Allow`.",
)
TOO_SLOW: Final = ProblemKind(
    "request-timeout",
    408,
    "The request body took too long",
    "The body arrived too slowly. Send the request again, without pauses.",
)
ID_CONFLICT: Final = ProblemKind(
    "id-conflict",
    409,
    "The message id was used for another message",
    REASONS["id_conflict"].advice,
)
NOT_FAILED: Final = ProblemKind(
    "not-failed",
    409,
    "It has not failed",
    "Only failed deliveries can be replayed, and only undelivered ones discarded. To send a delivered one once"
    ' more, set `{"only_failed": false}`.',
)
NOT_REPLAYABLE: Final = ProblemKind(
    "not-replayable",
    409,
    "It can no longer be replayed or discarded",
    "It was replayed, discarded or delivered in the meantime, or can no longer be sent; `detail` says which. Look"
    " up the message for its present state.",
)
ALREADY_SENT: Final = ProblemKind(
    "already-sent",
    409,
    "It was already sent, or has ended",
    "Only a delivery without any attempt can be cancelled. To end one that is being retried or waits for its"
    " answer, discard it.",
)
NO_SUCH_NUMBER: Final = ProblemKind(
    "no-such-number",
    409,
    "The receiver has no such number",
    "Ask with the last number in `relay-sequence`. Only messages of receivers with `ordering: receiver` have"
    " numbers. If the relay has lost its log, its numbers start again: then ask with 0.",
)
TOO_MANY_JOBS: Final = ProblemKind(
    "too-many-jobs",
    409,
    "Too many unfinished jobs",
    "Wait until some jobs have ended, or stop them: `GET /v1/replays` lists them.",
)
RECEIVER_EXISTS: Final = ProblemKind(
    "receiver-exists",
    409,
    "A receiver with this name exists",
    "Choose another name, or change the existing receiver with a `PATCH`.",
)
SOURCE_EXISTS: Final = ProblemKind(
    "source-exists",
    409,
    "This source already has an entry",
    "Change the existing entry with a `PATCH`.",
)
DECLARED_IN_FILE: Final = ProblemKind(
    "declared-in-file",
    409,
    "The entry is declared in the receivers file",
    "This entry is in the receivers file, so the API cannot change it. Edit the file; the relay applies it.",
)
UNVERIFIED: Final = ProblemKind(
    "receiver-unverified",
    409,
    "The receiver is not verified",
    "Nothing is sent to a receiver until its URL has passed the verification handshake. `POST"
    " /v1/receivers/{name}/verify` runs it at once, and returns what is missing.",
)
CREDENTIALS_NEEDED: Final = ProblemKind(
    "credentials-needed",
    409,
    "The credentials must be sent again",
    "The change would send a token, header, client secret or client key to another origin (scheme, host and port)"
    " than it was given for. Send each one that `errors` names again in the same request, or remove it with `null`."
    " This rule does not apply to the receivers file.",
)
NO_SECRETS_KEY: Final = ProblemKind(
    "no-secrets-key",
    409,
    "Secrets cannot be stored",
    "The relay encrypts secrets that it gets over the API, but has no key for that. The operator sets"
    " `RELAY_SECRETS_KEY`. Until then a receiver cannot have a secret in plain text, and its `signature` must be"
    " `none`.",
)
ANSWER_CLOSED: Final = ProblemKind(
    "answer-closed",
    410,
    "The time to answer is over",
    "The delivery already has its answer, was given up, or was started again by a replay. Do not repeat the"
    " request; the answer is no longer needed.",
)
PAYLOAD_GONE: Final = ProblemKind(
    "payload-gone",
    410,
    "The payload is no longer stored",
    "The message arrived, but the retention of `from_sender` is over and its record was deleted. To keep payloads"
    " for longer, the operator raises `RELAY_HISTORY_BODIES` or the retention. `detail` has what is known.",
)
TOO_MANY_RECEIVERS: Final = ProblemKind(
    "too-many-receivers",
    409,
    "The owner has the maximum number of receivers",
    "Remove receivers that are no longer needed. The operator sets the limit for each owner:"
    " `RELAY_API_OWNER_RECEIVERS`.",
)
TOO_MANY_KEYS: Final = ProblemKind(
    "too-many-keys",
    409,
    "The maximum number of keys is reached",
    "Revoke keys that are not used: `relay keys list` shows them.",
)
TOO_MANY_EVENT_TYPES: Final = ProblemKind(
    "too-many-event-types",
    409,
    "The catalogue is full",
    "Remove event types that are not used: `relay events delete TYPE`.",
)
TOO_MANY_ERASURES: Final = ProblemKind(
    "too-many-erasures",
    409,
    "The maximum number of erasures is reached",
    "Each erasure counts for 90 days. Erase a whole source or receiver instead of single messages.",
)
KEY_EXPIRED: Final = ProblemKind(
    "key-expired",
    409,
    "The key has expired",
    "A new secret would expire with the key. Create a new key.",
)
CHANGED_MEANWHILE: Final = ProblemKind(
    "changed-meanwhile",
    412,
    "It was changed by another request",
    "It was changed after you read it. Read it again, and repeat the change if it still applies.",
)
TOO_LARGE: Final = ProblemKind("too-large", 413, "The body is too large", REASONS["too_large"].advice)
UNSUPPORTED: Final = ProblemKind(
    "unsupported-media-type",
    415,
    "The content type or encoding is not supported",
    "Send the body with a content type that this route supports, and without `Content-Encoding`. Routes that"
    " control the relay accept only `application/json`.",
)
UNKNOWN_HOST: Final = ProblemKind(
    "unknown-host",
    421,
    "The request is for another host",
    "The `Host` of the request is not a name of this API. Use one that is, or add the name to `RELAY_ALLOWED_HOSTS`.",
)
INVALID_RECEIVER: Final = ProblemKind(
    "invalid-receiver",
    422,
    "The receiver is not valid",
    "`errors` names each mistake with a JSON pointer into the body. Nothing was stored. The fields are those of"
    " `receivers.yaml`.",
)
INVALID_SOURCE: Final = ProblemKind(
    "invalid-source",
    422,
    "The source is not valid",
    "`errors` names each mistake with a JSON pointer into the body. Nothing was stored. The fields are those of"
    " `receivers.yaml`. The defaults for all sources (`*`) can be set only in that file.",
)
UNKNOWN_RECEIVER: Final = ProblemKind(
    "unknown-receiver", 422, "There is no such receiver", REASONS["unknown_receiver"].advice
)
INVALID_EVENT_TYPE: Final = ProblemKind(
    "invalid-event-type",
    422,
    "The event type is not valid",
    "`errors` has the place as a JSON pointer into the entry. The cause is a schema that is not JSON Schema"
    " (2020-12), a pattern that RE2 does not support, a `$ref` to another document, or an example that does not"
    " match its schema.",
)
INVALID_PAYLOAD: Final = ProblemKind(
    "invalid-payload",
    422,
    "The payload does not match its event type",
    "This source accepts only payloads that match the schema of their event type. `errors` has the place in the"
    " payload, and `GET /v1/event-types/{type}` the schemas. Correct the payload or its type.",
)
ENDPOINT_NOT_ALLOWED: Final = ProblemKind(
    "endpoint-not-allowed",
    422,
    "No message may be sent to this endpoint",
    "A message may name its own endpoint only if an operator has allowed that origin in `RELAY_ADHOC_ENDPOINTS`."
    " Otherwise register a receiver, and name it.",
)
KEY_REUSED: Final = ProblemKind(
    "idempotency-key-reused",
    422,
    "The Idempotency-Key was used with another body",
    "The key belongs to a job that was started with another body. Repeat a request with the same key and body; give"
    " each new job a key of its own.",
)
UNFIT_ID: Final = ProblemKind(
    "unfit-id",
    422,
    "The message id does not fit into a URL",
    "The relay asks this receiver about a message at a URL that contains the message id, and this id would change"
    " the path. Choose an id without slashes, backslashes and control characters, even percent-encoded ones, and"
    " none that is `.` or `..`.",
)
RESERVED_SOURCE: Final = ProblemKind(
    "reserved-source",
    422,
    "The source is reserved",
    "The source `relay` is for the relay's own events: receivers may subscribe to it, but senders may not use it."
    " Choose another source id.",
)
NO_RECEIVER: Final = ProblemKind(
    "no-receiver",
    422,
    "No receiver for this message",
    "No receiver subscribes to this source and type. Name receivers with `?receiver=`, or add a subscription.",
)
TOO_MANY: Final = ProblemKind(
    "too-many-requests",
    429,
    "Too many requests",
    "The caller, or its address, made too many requests of this kind: wrong keys, more at a time than its share, or"
    " tests of an endpoint one right after the other. `detail` says which. Wait for the seconds in `Retry-After`.",
)
OVER_QUOTA: Final = ProblemKind(
    "quota-exceeded",
    429,
    "The quota is used up",
    "The key or the source has used up its quota. Wait for the seconds in `Retry-After`; the header `RateLimit` has"
    " what is left.",
)
HEADERS_TOO_LARGE: Final = ProblemKind(
    "headers-too-large",
    431,
    "The headers are too large",
    "Send fewer or shorter headers.",
)
INTERNAL: Final = ProblemKind(
    "internal-error",
    500,
    "The relay has failed",
    "This is a bug in the relay, and is in its log. Repeating the request is safe if the message has an id.",
)
NO_HISTORY: Final = ProblemKind(
    "no-history",
    503,
    "No history is configured",
    "Lists of messages and attempts come from a history, and this relay has none. The operator sets"
    " `RELAY_HISTORY_URL` (`sqlite:///path` on one machine, or `postgresql://...`) for every process, and runs the"
    " role `history`; `relay dev` does both. It is then filled with everything that the topics still have. Without"
    " a history, a message is found only by its source and id.",
)
UNAVAILABLE: Final = ProblemKind(
    "unavailable",
    503,
    "The relay cannot do this right now",
    "The relay is overloaded, or Kafka, Redis or the history does not answer. Repeat the request after the seconds"
    " in `Retry-After`; that is safe if the message has an id.",
)


class Problem(RelayError):
    """Ends a request with this response. `errors`: the mistakes, each with `detail` and its place: `header`,
    `parameter`, `path` or `pointer` (a JSON pointer into the body). `more`: further members of the document."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        errors: tuple[Mapping[str, str], ...] = (),
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = errors
        self.headers = dict(headers or {})
        self.more = dict(more or {})


def no_receiver(name: str) -> Problem:
    return Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r}.")


def busy(detail: str, kind: ProblemKind = UNAVAILABLE, after_s: int = RETRY_AFTER_S) -> Problem:
    """The problem of a request that may succeed when it is repeated after `after_s` seconds."""
    return Problem(kind, detail, headers={"Retry-After": str(after_s)})


def invalid(
    detail: str,
    *,
    kind: ProblemKind = INVALID,
    header: str | None = None,
    parameter: str | None = None,
    path: str | None = None,
    pointer: str | None = None,
) -> Problem:
    """A problem about one place in the request, by default a 400."""
    where = {"header": header, "parameter": parameter, "path": path, "pointer": pointer}
    places = {name: value for name, value in where.items() if value is not None}
    return Problem(kind, detail, errors=({"detail": detail, **places},) if places else ())


@contextmanager
def invalid_at(
    *, header: str | None = None, parameter: str | None = None, pointer: str | None = None
) -> Iterator[None]:
    """Translates errors about an invalid value into a problem about its place in the request."""
    try:
        yield
    except (InvalidRecord, ValueError) as error:
        raise invalid(str(error), header=header, parameter=parameter, pointer=pointer) from None
