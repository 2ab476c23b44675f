"""Whether the login of the state may do what the scripts do: tried at the start, on a key that is made for it.

Without that, a command that an ACL forbids shows when the first script comes to it, which may be in a week.
"""

from typing import Final, cast

from redis.exceptions import NoPermissionError, ResponseError

from relay.state.redis.shared import SharedConnection

_TRIED: Final = {
    **dict.fromkeys(("EXISTS", "GET", "MGET", "HGETALL", "HKEYS", "SCARD", "SMEMBERS", "ZCARD", "DEL"), ""),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "SADD", "SISMEMBER", "SREM", "ZREM", "ZSCORE"), "m"),
    **dict.fromkeys(("HINCRBY", "HSET", "HSETNX"), "m 1"),
    **dict.fromkeys(("ZRANGE", "ZRANGEBYSCORE", "ZREVRANGE"), "0 0"),
    "ZADD": "1 m",
    "SET": "1",
    "PEXPIRE": "1000",
}
"""Command -> what it is called with behind the key. That the key is of another type is no matter of rights."""

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
    """What the login may not do, in a few words; None: all that is needed. `key`: one of ours that nobody has."""
    (sha,) = await shared.exchange([(b"SCRIPT", b"LOAD", _PROBE)])
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
        return None  # of a cluster, another server has this key
    pairs = cast(list[bytes], found)
    if any(b"key" in why for why in pairs[1::2]):
        return f"use keys like {key.decode()}"
    return f"run {b', '.join(pairs[::2]).decode()}" if pairs else None
