"""What each problem means and what to do about it: the pages that the `type` of a problem leads to.

Also of those that only a failed delivery has, whose notices to a sender name the same pages.
"""

from typing import Final

from relay.domain.advice import ENDINGS

ADVICE: Final[dict[str, str]] = {
    "invalid-request": (
        "Something in the request cannot be read, or is not allowed. `errors` names each place: a header, a query"
        " parameter, a part of the path, or a JSON pointer into the body. Mend it; repeating it as it is will not"
        " do."
    ),
    "invalid-json": (
        "Send JSON, or the content type that the payload has. `RELAY_STRICT_JSON` has the relay refuse such messages; "
        "without it they are accepted with a warning."
    ),
    "unauthorized": "Send the header `Authorization: Bearer <key>` with a key of this API.",
    "forbidden": (
        "The key is valid, and has no scope for this. `detail` says which one is needed; an administrator can make "
        "such a key. The answer is the same whether or not the object exists."
    ),
    "invalid-event-type": (
        "`errors` has the place as a JSON pointer into the entry: a schema that is not JSON Schema (2020-12), a pattern"
        " that RE2 does not take, a `$ref` that leads out of the schema, or an example that is not valid by its schema."
    ),
    "invalid-payload": (
        "The source refuses payloads that are not valid by the catalogue's schemas of their event type. `errors` has"
        " the place in the payload; `GET /v1/event-types/{type}` has the schemas. Mend the payload, or its type."
    ),
    "too-many-event-types": "Remove event types that are not used: `relay events delete TYPE`.",
    "endpoint-not-allowed": (
        "A message may bring its endpoint along only if an operator has allowed the endpoint's origin: "
        "`RELAY_ADHOC_ENDPOINTS`. Otherwise register a receiver, and name it."
    ),
    "too-many-erasures": "An erasure is in force for 90 days. Erase a source or a receiver instead of single messages.",
    "too-many-keys": "Revoke keys that are not used: `relay keys list` shows them.",
    "key-expired": "A new secret would expire with the key: make a new key.",
    "bad-signature": (
        "The webhook does not carry what its source was set up with: check that both sides have the same secret, "
        "that the body is sent as it was signed, and that the clocks agree. Nothing of it was kept."
    ),
    "foreign-origin": (
        "A browser sent it for a page of another site. Programs send neither `Origin` nor `Sec-Fetch-Site`; pages"
        " of this API's own public URL may call it."
    ),
    "reserved-source": (
        "`relay` is the source of the relay's own events: receivers may subscribe to it, and no sender may use it. "
        "Send as a source with an id of your own."
    ),
    "not-found": (
        "There is nothing at that path: a wrong path, or what it names never was, is not there yet, or is long "
        "gone. `detail` says which."
    ),
    "method-not-allowed": "The path exists, and takes other methods: the header `Allow` lists them.",
    "request-timeout": "The body came too slowly. Send it in one go, and repeat the request.",
    "not-failed": (
        "Only what has failed can be replayed, and only what is not delivered can be discarded. To send once more"
        ' what was delivered, say `{"only_failed": false}`.'
    ),
    "not-replayable": (
        "It was replayed, discarded or delivered meanwhile, or cannot be sent any more; `detail` says which. Look"
        " at the message itself to see how it is."
    ),
    "already-sent": (
        "Only what was never sent can be cancelled. A discard ends what is still tried, or waits for its answer."
    ),
    "too-many-jobs": "Wait for some of the jobs that are not over, or stop them: `GET /v1/replays` lists them.",
    "receiver-exists": "Take another name, or change the receiver that there is with a `PATCH`.",
    "source-exists": "Change the entry that there is with a `PATCH`.",
    "declared-in-file": "What the receivers file declares is changed there, and read-only over the API.",
    "receiver-unverified": (
        "Nothing is sent there before its URL has proved that it wants it. `POST /v1/receivers/{name}/verify` tries at "
        "once, and says what is missing."
    ),
    "credentials-needed": (
        "The change would send a token, header, client secret or client key to another origin than it was given for. "
        "Give each that `errors` names anew in the same request, or take it away with `null`. The same origin (scheme, "
        "host and port) keeps them, and a receivers file may say what it wants."
    ),
    "no-secrets-key": (
        "Secrets that are given over the API are kept encrypted, and the relay has no key for that. Its operator "
        "sets `RELAY_SECRETS_KEY`; until then a receiver may have no secret in clear, and `signature` has to be `none`."
    ),
    "changed-meanwhile": "It was changed since you looked. Look again; repeat the change if it still fits.",
    "invalid-source": (
        "`errors` names each mistake with a JSON pointer into the body. Nothing was stored. The fields are those of"
        " `receivers.yaml`; what stands for all other sources (`*`), only that file says."
    ),
    "invalid-receiver": (
        "`errors` names each mistake with a JSON pointer into the body. Nothing was stored. The fields are those of"
        " `receivers.yaml`."
    ),
    "too-many-receivers": (
        "Remove receivers that are not needed any more. The operator of the relay sets how many an owner may have: "
        "`RELAY_API_OWNER_RECEIVERS`."
    ),
    "answer-closed": (
        "The delivery was given up, has its answer, or was begun anew. Nothing is to be done: the answer is not "
        "wanted any more."
    ),
    "answer-gone": "The message was delivered, but so long ago that the answer is not in the log any more.",
    "unsupported-media-type": (
        "Send the body as a type that is taken here, and without `Content-Encoding`. What controls the relay "
        "takes `application/json` only."
    ),
    "unknown-host": (
        "The request names a host that this API does not go by. Use one that it knows, or add the name to "
        "`RELAY_ALLOWED_HOSTS`."
    ),
    "unfit-id": (
        "The receiver is asked about messages at a URL with their id in it, and this id would lead elsewhere. "
        "Choose an id without dots and slashes alone."
    ),
    "no-receiver": (
        "No receiver subscribes to this source and type. Name some with `?receiver=`, or add a subscription."
    ),
    "too-many-requests": (
        "Too many wrong keys came from this address. Wait as long as `Retry-After` says, and send the right key."
    ),
    "quota-exceeded": (
        "The quota of the key or the source is used up. Wait as long as `Retry-After` says; `RateLimit` says what"
        " is left."
    ),
    "headers-too-large": "Send fewer or shorter headers.",
    "internal-error": (
        "This is a fault of the relay; it has been logged there. Repeating the request is safe if it has an id of"
        " its own."
    ),
    "unavailable": (
        "The relay, or what it stands on, is away for a moment or has too much to do. Repeat the request after "
        "`Retry-After`; with an id of its own that is safe."
    ),
    "no-history": (
        "Messages and attempts are listed from a history, and this relay has none. Its operator sets "
        "`RELAY_HISTORY_URL` (`sqlite:///path` on one machine, or `postgresql://...`) for every process, and runs the "
        "role `history`; `relay dev` does so on its own. What was on the topics before is in it, as long as they "
        "keep it. Without it a message is found by its source and id."
    ),
    "payload-gone": (
        "The message came, and its record is not on `from_sender` any more: the retention of that topic is over. Where "
        "payloads are to be kept for longer, the operator of the relay raises `RELAY_HISTORY_BODIES` or the retention; "
        "`detail` says what is known."
    ),
    # of deliveries
    **{reason.replace("_", "-"): text for reason, text in ENDINGS.items()},
    "delivery-failed": "The delivery was given up. Look at its dead letter, mend the cause, and replay it.",
}
"""By the last part of `type`."""
