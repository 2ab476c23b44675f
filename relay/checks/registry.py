"""The checks that there are: what each looks at, what it finds, and what to do then. docs/doctor.md is made of it."""

from typing import Final, NamedTuple


class CheckInfo(NamedTuple):
    """`looks_at`: what the check looks at. `finds`: what it may say, and what that means. `todo`: what to do then."""

    name: str
    looks_at: str
    finds: str
    todo: str


CHECKS: Final = (
    CheckInfo(
        "settings",
        "every setting and where it came from, and the receivers file, as `relay config check` does",
        "error: a value that cannot be used, or two that contradict each other: the relay does not start",
        "correct the variable, option or line that is named; `relay config show` tells where each value comes from",
    ),
    CheckInfo(
        "software",
        "the versions of Python and OpenSSL that this runs on",
        "warning: a version that gets no fixes any more",
        "move to a newer image or distribution",
    ),
    CheckInfo(
        "descriptors",
        "how many files and connections a process may have open, against the requests that it is to have under way",
        "error: `RELAY_MAX_REQUESTS` needs more than there are; warning: there is room for few requests at a time",
        "raise `ulimit -n` (`LimitNOFILE=` of systemd) to 65536",
    ),
    CheckInfo(
        "data",
        "the data directory of an embedded relay, or of a history in SQLite: whether it can be written to, and the "
        "room left on its disk",
        "error: it cannot be written to, or the disk is as good as full; warning: less than a tenth, or 1 GiB, is left",
        "make room, or move the directory",
    ),
    CheckInfo(
        "api-key",
        "whether the API asks for a key, and who reaches it",
        "error: others than this machine reach it and nobody needs a key; warning: the same, wanted so by a setting, "
        "or `RELAY_PUBLIC_URL` leads to an API without a key",
        "set `RELAY_API_KEY` (`openssl rand -hex 32`), or make a key with `relay keys create --scope admin`",
    ),
    CheckInfo(
        "public-url",
        "whether `RELAY_PUBLIC_URL` answers from here, and whether it is this relay that answers there: it has to know "
        "the secret that answer URLs are signed with",
        "error: nobody answers, or somebody else; warning: another version of the relay answers",
        "correct `RELAY_PUBLIC_URL`, or what leads from there to the API; all processes need the same "
        "`RELAY_ANSWER_SECRET`",
    ),
    CheckInfo(
        "answer-urls",
        "whether receivers are sent URLs for answers that come later, and can reach them",
        "warning: they are off, or lead to this machine only, or their secret can be guessed",
        "set `RELAY_ANSWER_SECRET` and `RELAY_PUBLIC_URL`",
    ),
    CheckInfo(
        "log",
        "whether Kafka (the log of an embedded relay) answers, and its version",
        "error: nobody answers at `RELAY_KAFKA_BOOTSTRAP_SERVERS`, or does not let this user in: nothing is taken, and "
        "nothing goes on until it is back",
        "start Kafka, or correct `RELAY_KAFKA_BOOTSTRAP_SERVERS` and what `relay config show` says of its security",
    ),
    CheckInfo(
        "rights",
        "what this user may do on Kafka, against what the roles need",
        "error: a right is missing that no process can do without: it does not start; warning: one that is needed "
        "later",
        "the commands that `relay rights` prints",
    ),
    CheckInfo(
        "topics",
        "each topic: whether it is there, its partitions, copies, cleanup, retention and largest record",
        "error: as it is, messages are lost, or blocked for ever: the relay does not start; warning: they may be lost, "
        "or come out of order, together with something else",
        "the command that the line names; a missing topic is made by `relay topics apply`",
    ),
    CheckInfo(
        "lag",
        "of each consumer group, how many records are unread, and how long the oldest has waited; twice, two seconds "
        "apart",
        "error: records were deleted unread, or soon will be; warning: the oldest waits for more than a minute, and "
        "the backlog grows or stands still",
        "see who serves the lane (`lanes`), start more processes (`relay worker ROLE`), and look at what is slow: "
        "`relay receivers health NAME`",
    ),
    CheckInfo(
        "state",
        "whether Redis answers, its version, what this login may do, that it evicts nothing, keeps what it is told on "
        "disk, and has memory left",
        "error: nobody answers, or the relay would not start with it; warning: a restart forgets what was delivered, "
        "or memory is nearly full",
        "start Redis, correct `RELAY_REDIS_URL`, or run the command that the line names",
    ),
    CheckInfo(
        "recovery",
        "whether what Redis knew is complete",
        "warning: it has lost its memory, or may have, and it has not been put back yet: duplicates are possible",
        "wait where a relay runs; else start one, which recovers by itself",
    ),
    CheckInfo(
        "clock",
        "this machine's clock, against that of Redis and that of Kafka",
        "error: they are more than 30 s apart: receivers may refuse signatures, messages die early or late",
        "set the clocks of all machines by NTP (`timedatectl set-ntp true`)",
    ),
    CheckInfo(
        "lanes",
        "of each partition that has to be read, when a process last said that it serves it",
        "error: nobody serves it and something is in it; warning: nobody serves it",
        "the command that the line names",
    ),
    CheckInfo(
        "parked",
        "how much waits for its next attempt, in all and of each receiver, against what may",
        "error: a bound is reached, and intake stops; warning: half of the room is taken",
        "find out why the receiver takes nothing; or raise `RELAY_PARKED_PER_RECEIVER` or `RELAY_PARKED_TOTAL`",
    ),
    CheckInfo(
        "dead-letters",
        "dead letters of the last hour, by receiver and reason",
        "warning: there are some",
        "`relay failed list --receiver NAME`; when the cause is mended, `relay replay --receiver NAME`",
    ),
    CheckInfo(
        "entries",
        "whether each receiver and source can be used in this environment: variables, files and keys that it refers to",
        "error: its entry is refused; messages to it wait, or go on by its former entry",
        "set the variable that is named, for every process of the relay; `RELAY_SECRETS_FROM` says which are allowed",
    ),
    CheckInfo(
        "dns",
        "whether the host of each receiver, status endpoint, callback and token endpoint has an address",
        "error: there is no such name; warning: no name server answers",
        "correct the URL, or the name server of this machine (`/etc/resolv.conf`)",
    ),
    CheckInfo(
        "address",
        "whether the relay may send to the address that the name leads to",
        "error: it is private, or plain http: every message to it becomes a dead letter, `blocked`",
        "the setting that the line names; or a public address, and https",
    ),
    CheckInfo(
        "connection",
        "whether something accepts a connection there, by way of the proxy if there is one; no request is made",
        "warning: nothing does; messages to it are tried again until they are too old",
        "start the receiver, or open the way to it: firewall, proxy, port",
    ),
    CheckInfo(
        "tls",
        "the certificate that is shown there, with the receiver's own authorities, certificate and pins",
        "error: it is not trusted, has expired, or is another one's; warning: it expires within 14 days",
        "renew it; or name who issued it, in `tls.ca` of the receiver or `RELAY_CA_FILE`",
    ),
    CheckInfo(
        "history",
        "how far the history is behind the log, where there is one",
        "warning: it is behind by more than a minute, or nobody can say how far; error: its store does not answer",
        "start its worker (`relay worker history`), or mend its store; messages do not wait for it",
    ),
)
NAMES: Final = tuple(each.name for each in CHECKS)
