"""The registry of checks: what each examines, what it reports, and what to do then. docs/doctor.md shows it."""

from typing import Final, NamedTuple


class CheckInfo(NamedTuple):
    """`looks_at`: the subject of the check. `finds`: its possible results, and their meaning. `todo`: what to do
    then."""

    name: str
    looks_at: str
    finds: str
    todo: str


CHECKS: Final = (
    CheckInfo(
        "settings",
        "every setting and its origin, and the receivers file, as `relay config check` does",
        "error: an invalid value, or two that contradict each other: the relay does not start",
        "correct the named variable, option or line; `relay config show` prints the origin of each value",
    ),
    CheckInfo(
        "software",
        "the versions of Python and OpenSSL in use",
        "warning: a version that no longer gets fixes",
        "upgrade the image or distribution",
    ),
    CheckInfo(
        "descriptors",
        "the limit of open files and connections, compared with the requests that may be in flight",
        "error: `RELAY_MAX_REQUESTS` needs more than the limit; warning: only few requests may be in flight",
        "raise `ulimit -n` (`LimitNOFILE=` of systemd) to 65536",
    ),
    CheckInfo(
        "data",
        "the data directory of an embedded relay, or of a history in SQLite: whether it is writable, and the "
        "free space on its disk",
        "error: it is not writable, or the disk is nearly full; warning: less than a tenth, or 1 GiB, is free",
        "free space, or move the directory",
    ),
    CheckInfo(
        "api-key",
        "whether the API requires a key, and which machines reach it",
        "error: other machines reach it without a key; warning: the same, allowed by a setting, "
        "or `RELAY_PUBLIC_URL` leads to an API without a key",
        "set `RELAY_API_KEY` (`openssl rand -hex 32`), or create a key with `relay keys create --scope admin`",
    ),
    CheckInfo(
        "public-url",
        "whether `RELAY_PUBLIC_URL` answers from here, and whether this relay serves it: it has to know "
        "the secret of answer URLs",
        "error: no server or another server answers; warning: another version of the relay answers",
        "correct `RELAY_PUBLIC_URL`, or the proxy between it and the API; all processes need the same "
        "`RELAY_ANSWER_SECRET`",
    ),
    CheckInfo(
        "answer-urls",
        "whether receivers get URLs for later answers, and can reach them",
        "warning: they are off, or lead to this machine only, or their secret can be guessed",
        "set `RELAY_ANSWER_SECRET` and `RELAY_PUBLIC_URL`",
    ),
    CheckInfo(
        "log",
        "whether Kafka (the log of an embedded relay) answers, and its version",
        "error: no broker answers at `RELAY_KAFKA_BOOTSTRAP_SERVERS`, or it rejects this user: nothing is accepted "
        "or delivered until it is back",
        "start Kafka, or correct `RELAY_KAFKA_BOOTSTRAP_SERVERS` and its security settings in `relay config show`",
    ),
    CheckInfo(
        "rights",
        "the rights of this user on Kafka, compared with those that the roles need",
        "error: a right that every process needs is missing: it does not start; warning: one that is needed later",
        "the commands that `relay rights` prints",
    ),
    CheckInfo(
        "topics",
        "each topic: whether it exists, its partitions, replicas, cleanup, retention and largest record",
        "error: messages would be lost, or blocked for ever: the relay does not start; warning: they may be lost "
        "or reordered in combination with another failure",
        "the command that the line names; `relay topics apply` creates a missing topic",
    ),
    CheckInfo(
        "lag",
        "for each consumer group, the number of unread records and the age of the oldest; twice, two seconds apart",
        "error: records were deleted unread, or soon will be; warning: the oldest has waited for more than a minute, "
        "and the backlog grows or is stuck",
        "see which process serves the lane (`lanes`), start more processes (`relay worker ROLE`), and find slow "
        "receivers: `relay receivers health NAME`",
    ),
    CheckInfo(
        "state",
        "whether Redis answers, its version, the rights of its user, that it evicts nothing, persists writes "
        "to disk, and has free memory",
        "error: no server answers, or the relay would not start with it; warning: a restart forgets delivered "
        "messages, or memory is nearly full",
        "start Redis, correct `RELAY_REDIS_URL`, or run the command that the line names",
    ),
    CheckInfo(
        "recovery",
        "whether the state in Redis is complete",
        "warning: it has lost data, or may have, and it is not restored yet: duplicates are possible",
        "wait if a relay is running; otherwise start one, which recovers the state",
    ),
    CheckInfo(
        "clock",
        "this machine's clock, compared with those of Redis and Kafka",
        "error: they are more than 30 s apart: receivers may refuse signatures, messages expire early or late",
        "set the clocks of all machines by NTP (`timedatectl set-ntp true`)",
    ),
    CheckInfo(
        "lanes",
        "for each partition that has to be read, when a process last reported that it serves it",
        "error: no process serves it, and it has records; warning: no process serves it",
        "the command that the line names",
    ),
    CheckInfo(
        "parked",
        "the records that wait for their next attempt, in all and per receiver, compared with the limits",
        "error: a limit is reached, and intake stops; warning: half of a limit is used",
        "find out why the receiver accepts nothing; or raise `RELAY_PARKED_PER_RECEIVER` or `RELAY_PARKED_TOTAL`",
    ),
    CheckInfo(
        "dead-letters",
        "dead letters of the last hour, by receiver and reason",
        "warning: there are some",
        "`relay failed list --receiver NAME`; when the cause is fixed, `relay replay --receiver NAME`",
    ),
    CheckInfo(
        "entries",
        "whether each receiver and source can be used in this environment: the variables, files and keys it refers to",
        "error: its entry is refused; messages to it wait, or use its former entry",
        "set the named variable, for every process of the relay; `RELAY_SECRETS_FROM` lists the allowed ones",
    ),
    CheckInfo(
        "dns",
        "whether the host of each receiver, status endpoint, callback and token endpoint has an address",
        "error: the name does not exist; warning: no name server answers",
        "correct the URL, or the name server of this machine (`/etc/resolv.conf`)",
    ),
    CheckInfo(
        "address",
        "whether the relay may send to the address of the name",
        "error: it is private, or plain http: every message to it becomes a dead letter, `blocked`",
        "the setting that the line names; or a public address, and https",
    ),
    CheckInfo(
        "connection",
        "whether a server accepts a connection there, through the proxy if there is one; no request is made",
        "warning: no server does; messages to it are retried until they expire",
        "start the receiver, or allow connections to it: firewall, proxy, port",
    ),
    CheckInfo(
        "tls",
        "the certificate presented there, by the receiver's own authorities, certificate and pins",
        "error: it is not trusted, has expired, or has another name; warning: it expires within 14 days",
        "renew it; or configure its issuer, in `tls.ca` of the receiver or `RELAY_CA_FILE`",
    ),
    CheckInfo(
        "history",
        "how far the history, if there is one, is behind the log",
        "warning: it is behind by more than a minute, or its lag is unknown; error: its store does not answer",
        "start its worker (`relay worker history`), or repair its store; messages do not wait for it",
    ),
)
NAMES: Final = tuple(each.name for each in CHECKS)
