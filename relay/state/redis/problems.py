"""Checks of the state's servers: problems that prevent a start, and warnings for operators."""

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from relay.domain.errors import StateUnavailable, UserError
from relay.state.redis.connection import field, unix_seconds
from relay.state.redis.servers import Servers
from relay.state.redis.shared import SharedConnection

T = TypeVar("T")

OLDEST: Final = (6, 0)
"""Since Redis 6.0, `SET` has KEEPTTL, without which no outcome could be stored at a receiver with `max_in_flight`."""
CLOCK_OFF_S: Final = 30.0
NEARLY_FULL: Final = 0.9
_MIB: Final = 1024**2

_TO_A_SENTINEL: Final = "the URL leads to a sentinel; write redis+sentinel://host:26379/<name of the master>"
_TO_A_CLUSTER: Final = "the URL leads to a cluster; write redis+cluster://host:6379"
_MISTAKES: Final = {
    "cluster support disabled": "the URL leads to no cluster; write redis://host:6379/0",
    "SELECT is not allowed in cluster mode": _TO_A_CLUSTER,
    "unknown command 'SELECT'": _TO_A_SENTINEL,
    "DB index is out of range": (
        "the server has no database of the number in the URL; write a lower one, or raise its setting `databases`"
    ),
}
"""Part of an error reply -> the mistake in the URL that causes it at each connection."""


class ServerInfo(NamedTuple):
    """Facts about a server. `info`: its INFO. `save`, `full_coverage`: settings; None if not readable. `ahead_s`:
    offset from our clock."""

    info: bytes
    save: str | None
    full_coverage: str | None
    ahead_s: float

    @property
    def mode(self) -> str:
        """`standalone`, `cluster` or `sentinel`."""
        return self.text("redis_mode") or self.text("server_mode")  # the second is Valkey's

    def text(self, name: str) -> str:
        return field(self.info, name.encode())

    def number(self, name: str) -> int:
        return int(self.text(name) or 0)


async def check(servers: Servers, key: bytes) -> None:
    """Raises UserError for servers that may evict, reject our login, or are of another kind than the URL says, and for
    missing permissions. `key`: an unused key of ours."""
    for facts in (await _each(servers, _facts)).values():
        mode, policy = facts.mode, facts.text("maxmemory_policy")
        if mode == "sentinel":
            raise UserError(f"Redis: {_TO_A_SENTINEL}")
        if mode == "cluster" and not servers.apart:
            raise UserError(f"Redis: {_TO_A_CLUSTER}")
        if policy != "noeviction":
            raise UserError(
                f"Redis: maxmemory-policy is {policy}, so it may drop what keeps messages from being delivered twice;"
                " set `maxmemory-policy noeviction`"
            )
    for lacking in (await _each(servers, partial(forbidden, key=key))).values():
        if lacking is not None:
            raise UserError(f"Redis: this user may not {lacking}; `relay rights` prints the ACL rule that allows it")


async def problems_of(servers: Servers) -> list[str]:
    """A line for each problem, with the server's name if there are several. Raises StateUnavailable."""
    found = await _each(servers, _facts)
    return [
        f"{name}: {problem}" if name else problem
        for name, facts in found.items()
        for problem in judged(facts, replicated=servers.replicated)
    ]


async def about_servers(servers: Servers) -> str:
    """Description of the servers and their memory use. Raises StateUnavailable."""
    found = await _each(servers, _facts)
    return "; ".join(f"{name}: {_about(facts)}" if name else _about(facts) for name, facts in found.items())


def _about(facts: ServerInfo) -> str:
    valkey = facts.text("valkey_version")
    version = f"Valkey {valkey}" if valkey else f"Redis {facts.text('redis_version')}"
    used, most = facts.number("used_memory"), facts.number("maxmemory") or facts.number("total_system_memory")
    whole = "maxmemory" if facts.number("maxmemory") else "the machine's memory, as no maxmemory is set"
    return f"{version}, {facts.mode}; {used / _MIB:.0f} MiB used of {most / _MIB:.0f} MiB ({whole})"


def judged(facts: ServerInfo, *, replicated: bool) -> Iterator[str]:
    """Problems of a server. `replicated`: a replica is expected to take over."""
    yield from _memory_problems(facts)
    if facts.number("aof_enabled") == 0:
        if facts.save == "":
            yield "stores nothing on disk: after a restart it does not know what was delivered; set `appendonly yes`"
        else:
            yield "appendonly is off: a restart loses all writes since the last snapshot; set `appendonly yes`"
    if abs(facts.ahead_s) > CLOCK_OFF_S:
        yield f"its clock is {abs(facts.ahead_s):.0f} s {'ahead of' if facts.ahead_s > 0 else 'behind'} ours"
    replicas = facts.number("connected_slaves")
    if replicas and not facts.text("min_slaves_good_slaves"):  # shown only if writes depend on it
        yield "min-replicas-to-write is 0: a fail-over loses writes that no replica has yet; set it to 1"
    if replicated and not replicas:
        yield "has no replica: nothing takes over if it fails"
    if facts.mode == "cluster" and facts.full_coverage == "yes":
        yield "cluster-require-full-coverage is yes: one unavailable shard stops all others; set it to no"
    version = facts.text("redis_version")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        yield f"version {version} is too old for our scripts; {'.'.join(map(str, OLDEST))} or newer is needed"


def _memory_problems(facts: ServerInfo) -> Iterator[str]:
    policy, used, most = facts.text("maxmemory_policy"), facts.number("used_memory"), facts.number("maxmemory")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}: it may drop what keeps messages from being delivered twice"
    if most and used > NEARLY_FULL * most:
        yield f"{used / most:.0%} of maxmemory is used: at the limit it refuses writes, and delivery stops"


async def _each(servers: Servers, ask: Callable[[SharedConnection], Awaitable[T]]) -> dict[str, T]:
    """The reply of each server. Raises UserError if one rejects the login or the query."""
    try:
        return dict(await servers.each(ask))
    except StateUnavailable as error:
        cause = error.__cause__
        if isinstance(cause, AuthenticationError | NoPermissionError):
            advice = "see the user and password in the Redis URL; `relay rights` prints the user's ACL rule"
            raise UserError(f"{error}; {advice}") from error
        for reply, mistake in _MISTAKES.items():
            if isinstance(cause, ResponseError) and reply in str(cause):
                raise UserError(f"Redis: {mistake}") from error
        raise


async def _facts(shared: SharedConnection) -> ServerInfo:
    info, clock, save, full_coverage = await shared.exchange(
        [
            (b"INFO",),
            (b"TIME",),
            (b"CONFIG", b"GET", b"save"),
            (b"CONFIG", b"GET", b"cluster-require-full-coverage"),
        ]
    )
    if isinstance(info, ResponseError):
        raise info
    return ServerInfo(cast(bytes, info), _setting(save), _setting(full_coverage), _ahead_s(clock))


def _ahead_s(clock: object) -> float:
    """Offset of the server's clock from ours; 0 if unknown."""
    return unix_seconds(clock) - time.time() if isinstance(clock, list) else 0.0


def _setting(reply: object) -> str | None:
    """The value in a reply to CONFIG GET; None if it is forbidden or missing."""
    return bytes(reply[1]).decode() if isinstance(reply, list) and len(reply) > 1 else None


# permissions

_TRIED: Final = {
    **dict.fromkeys(("EXISTS", "GET", "MGET", "HGETALL", "HKEYS", "SCARD", "SMEMBERS", "ZCARD", "DEL", "INFO"), ""),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "SADD", "SISMEMBER", "SREM", "ZREM", "ZSCORE"), "m"),
    **dict.fromkeys(("HINCRBY", "HSET", "HSETNX"), "m 1"),
    **dict.fromkeys(("ZRANGE", "ZRANGEBYSCORE", "ZREVRANGE"), "0 0"),
    "ZADD": "1 m",
    "SET": "1",
    "PEXPIRE": "1000",
}
"""Command -> its arguments after the key. Errors about the key's type do not matter here."""

_PROBE: Final = b"""
local refused = {}
for _, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  local name = table.remove(words, 1)
  local reply = redis.pcall(name, KEYS[1], unpack(words))
  local why = type(reply) == 'table' and reply.err
  if why and (string.find(why, 'NOPERM') or string.find(why, 'ACL failure') or string.find(why, "can't")) then
    refused[#refused + 1] = name
    refused[#refused + 1] = why
  end
end
redis.pcall('DEL', KEYS[1])
return refused
"""


async def forbidden(shared: SharedConnection, key: bytes) -> str | None:
    """The permission that the login lacks, in a few words; None if it lacks none. `key`: an unused key of ours.

    Without this check, a forbidden command would only fail when a script first needs it, perhaps a week later.
    """
    sha, clock = await shared.exchange([(b"SCRIPT", b"LOAD", _PROBE), (b"TIME",)])
    if isinstance(clock, NoPermissionError):
        return "run TIME"
    if isinstance(sha, NoPermissionError):
        return "load scripts (SCRIPT LOAD)"
    if isinstance(sha, ResponseError):
        raise sha
    lines = [f"{name} {words}".encode() for name, words in _TRIED.items()]
    (found,) = await shared.exchange([(b"EVALSHA", cast(bytes, sha), b"1", key, *lines)])
    if isinstance(found, NoPermissionError):
        text = str(found)
        return f"use keys like {key.decode()}" if "key" in text else "run scripts (EVALSHA)"
    if isinstance(found, ResponseError):
        return None  # in a cluster, another server has this key
    pairs = cast(list[bytes], found)
    if any(b"key" in why for why in pairs[1::2]):
        return f"use keys like {key.decode()}"
    return f"run {b', '.join(pairs[::2]).decode()}" if pairs else None
