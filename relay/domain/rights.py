"""Permissions that each role needs on Kafka and Redis: the single source for the startup check, `relay rights`, and
docs/least-rights.md."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from relay.domain.topics import SHARED, Topics

Operation = Literal["Read", "Write", "Create", "Alter", "Describe", "DescribeConfigs"]
Kind = Literal["topic", "group"]

API: Final = "api"
OPERATOR: Final = "operator"
"""The user of commands that access Kafka and Redis directly, such as `relay topics apply` and `relay recover`."""
SENDER: Final = "sender"
"""A producer of messages on `from_sender`. Not a role of the relay."""
RESULTS: Final = "results"
"""A sender that reads its results from `to_sender` (`callback: kafka`). Not a role of the relay."""

ORDER: Final[tuple[Operation, ...]] = ("Read", "Write", "Create", "Alter", "Describe", "DescribeConfigs")
_IMPLY_DESCRIBE: Final = frozenset({"Read", "Write", "Alter"})
"""Kafka implies Describe for users with any of these."""


_LATER: Final = frozenset({"Create", "Alter"})
"""An operator may create topics, and add partitions, instead."""


class Right(NamedTuple):
    """Operations on a topic or group of this name, or if `prefixed` on all with this prefix.

    `probe`: a name to check whether the permission was granted; None if that is not checked.
    """

    kind: Kind
    name: str
    prefixed: bool
    operations: tuple[Operation, ...]
    probe: str | None

    def only(self, operations: tuple[Operation, ...]) -> "Right":
        return self._replace(operations=operations)

    def without_implied(self) -> "Right":
        """The same permission, without an implied Describe."""
        if not _IMPLY_DESCRIBE & set(self.operations):
            return self
        return self.only(tuple(each for each in self.operations if each != "Describe"))

    def at_once(self, topics: Topics) -> "Right | None":
        """The part that every process needs at startup; None if there is none."""
        operations = tuple(each for each in self.operations if each not in _LATER)
        return self.only(operations) if operations and self.name not in topics.informational else None


_LANES: Final = ("to_receiver_*", "pending_*")
_TOPICS: Final = (
    "from_sender",
    *_LANES,
    "to_sender",
    "failed_messages",
    "parked_messages",
    "receiver_config",
    "delivery_attempts",
    "audit",
)
_LOOK: Final[tuple[Operation, ...]] = ("Describe", "DescribeConfigs")
_EVERY_PROCESS: Final[Mapping[str, tuple[Operation, ...]]] = {
    **dict.fromkeys(_TOPICS, _LOOK),  # it checks the topics before it uses them
    "parked_messages": (*_LOOK, "Read", "Write"),  # any process may restore data that Redis has lost
    "receiver_config": (*_LOOK, "Read"),
}
_HOLDS: Final[Mapping[str, tuple[Operation, ...]]] = {"receiver_config": ("Write",)}
"""Roles that send requests pause endpoints that are gone or down for days, and verify receivers."""
_TELLS: Final[Mapping[str, tuple[Operation, ...]]] = {"from_sender": ("Write",)}
"""Roles that observe receivers and messages publish the relay's own events."""
_CALLS: Final[Mapping[str, tuple[Operation, ...]]] = {"delivery_attempts": ("Write",)}
"""Roles that send requests record each of them, for the history."""

_OF_ROLE: Final[Mapping[str, Mapping[str, tuple[Operation, ...]]]] = {
    OPERATOR: dict.fromkeys(_TOPICS, ("Read", "Write", "Create", "Alter")),
    API: {
        **dict.fromkeys(_TOPICS, ("Read", "Write")),
        **dict.fromkeys(_LANES, ("Read", "Write", "Create", "Alter")),
    },
    "from-sender": {"from_sender": ("Read",), "to_receiver_*": ("Write",), "failed_messages": ("Write",)},
    "to-receiver": {
        **_CALLS,
        **_HOLDS,
        **_TELLS,
        "to_receiver_*": ("Read",),
        "pending_*": ("Write",),
        "to_sender": ("Write",),
        "failed_messages": ("Write",),
    },
    "from-receiver-async": {
        **_CALLS,
        **_HOLDS,
        **_TELLS,
        "pending_*": ("Read",),
        "to_receiver_*": ("Write",),
        "to_sender": ("Write",),
        "failed_messages": ("Write",),
    },
    "to-sender": {**_CALLS, **_HOLDS, "to_sender": ("Read",), "failed_messages": ("Write",)},
    "failed-messages": {**_TELLS, "failed_messages": ("Read",), "to_sender": ("Write",)},
    "history": dict.fromkeys(("from_sender", "to_sender", "failed_messages", "delivery_attempts"), ("Read",)),
}
_OF_OTHERS: Final[Mapping[str, Mapping[str, tuple[Operation, ...]]]] = {
    SENDER: {"from_sender": ("Write",)},
    RESULTS: {"to_sender": ("Read",)},
}
WHO: Final = (*_OF_ROLE, *_OF_OTHERS)

REDIS_COMMANDS: Final = (
    *("EVALSHA", "SCRIPT|LOAD", "INFO", "TIME", "CONFIG|GET", "CLUSTER|SLOTS", "SUBSCRIBE", "PING", "SELECT"),
    *("DEL", "EXISTS", "PEXPIRE", "GET", "MGET", "SET", "PUBLISH"),
    *("HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HKEYS", "HMGET", "HSET", "HSETNX"),
    *("SADD", "SCARD", "SISMEMBER", "SMEMBERS", "SREM"),
    *("ZADD", "ZCARD", "ZRANGE", "ZRANGEBYSCORE", "ZREM", "ZREVRANGE", "ZSCORE"),
)
"""Redis commands of the relay's processes and of its scripts, which need the same permissions."""


def rights_of(topics: Topics, roles: Iterable[str]) -> list[Right]:
    """Permissions of one user, for a process with these roles, or for SENDER or RESULTS."""
    needs: dict[str, set[Operation]] = {}
    groups: list[Right] = []
    for role in roles:
        of_role = [_OF_OTHERS[role]] if role in _OF_OTHERS else [_EVERY_PROCESS, _OF_ROLE[role]]
        for topic, some in ((topic, some) for each in of_role for topic, some in each.items()):
            needs.setdefault(topic, set()).update(some)
        groups += _groups(topics, role)
    names = {"to_receiver_*": topics.to_receiver(""), "pending_*": topics.pending("")}
    probes = {"to_receiver_*": topics.to_receiver(SHARED), "pending_*": topics.pending(SHARED)}
    found = []
    for topic in _TOPICS:
        if operations := needs.get(topic):
            name = names.get(topic, topics.prefix + topic)
            in_order = tuple(each for each in ORDER if each in operations)
            found.append(Right("topic", name, topic in names, in_order, probes.get(topic, name)).without_implied())
    return [*found, *groups]


def _groups(topics: Topics, role: str) -> list[Right]:
    if role in _OF_OTHERS:
        return []  # its group's name is its own choice
    if role in (API, OPERATOR):  # commits each group's first offsets, and reads their lag
        return [Right("group", topics.group(""), True, ("Read",), None)]
    group = topics.group(role)  # a prefix: also for the groups of new topics, and of lanes of older releases
    return [Right("group", group, True, ("Read",), group)]


def kafka_commands(rights: Iterable[Right], principal: str) -> list[str]:
    """Commands of `kafka-acls.sh`, one for each kind of permission; topics with the same permissions share one."""
    together: dict[tuple[Kind, bool, tuple[Operation, ...]], list[str]] = {}
    for right in rights:
        together.setdefault((right.kind, right.prefixed, right.operations), []).append(right.name)
    commands = []
    for (kind, prefixed, operations), names in together.items():
        words = [f"--allow-principal {principal}", *(f"--{kind} {name}" for name in names)]
        words += ["--resource-pattern-type prefixed"] if prefixed else []
        words += [f"--operation {operation}" for operation in operations]
        commands.append(" ".join(["kafka-acls.sh $KAFKA --add", *words]))
    return commands


def redis_rule(topics: Topics, user: str) -> list[str]:
    """Arguments of ACL SETUSER for the relay's user; the same for every role, because roles share rows."""
    names = f"{topics.prefix}relay:*"
    return [
        user,
        "reset",
        "on",
        ">PASSWORD",
        f"~{names}",
        f"&{names}",
        *(f"+{name.lower()}" for name in REDIS_COMMANDS),
    ]
