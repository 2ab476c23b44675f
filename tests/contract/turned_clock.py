"""A clock that only tests move, and the expiry of a server's keys with it."""

from redis.asyncio import Redis

from tests.contract.state_contract import WINDOW_S

_AGE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then
    redis.call('PEXPIRE', key, left - ARGV[1]) -- 0 or less deletes it
  end
end
"""


class TurnedClock:
    """Returns Unix seconds. It starts at the beginning of a half window."""

    def __init__(self) -> None:
        self.now = WINDOW_S / 2 * 3_400_000

    def __call__(self) -> float:
        return self.now


async def age_keys(client: Redis, seconds: float) -> None:
    """Reduce the time to live of every key, and delete the keys that expire."""
    await client.eval(_AGE, 0, str(round(seconds * 1000)))
