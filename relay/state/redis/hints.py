"""Hints by Pub/Sub: deliveries that have ended and that a client's request waits for, and endpoints that may be tried
again. A hint without a subscriber is lost.

A script publishes on a channel of its hash tag; in a cluster all servers forward it, so one can subscribe on any.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from redis.exceptions import ConnectionError, RedisError, ResponseError

from relay.state.redis.connection import IdentifiedConnection, packed
from relay.state.redis.servers import Servers
from relay.state.redis.shared import unavailable

_SILENCE_S: Final = 300.0
"""After this long without any hint the connection is reopened, because a vanished peer is silent, too."""
_SUBSCRIBED_S: Final = 5.0


@asynccontextmanager
async def hints(servers: Servers, channels: Sequence[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """The messages on `channels` from now on. Raises StateUnavailable, also while iterating."""
    try:
        async with asyncio.timeout(_SUBSCRIBED_S):
            connection = await servers.connected()
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
    connection.socket_timeout = None  # silence is no error here
    try:
        await _subscribe(connection, channels)
        yield _heard(connection)
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
    finally:
        await connection.disconnect(nowait=True)


async def _subscribe(connection: IdentifiedConnection, channels: Sequence[bytes]) -> None:
    async with asyncio.timeout(_SUBSCRIBED_S):
        await connection.send_packed_command(packed([(b"SUBSCRIBE", *channels)]), check_health=False)
        for _ in channels:
            reply = await connection.read_reply()
            if isinstance(reply, ResponseError):  # an ACL may allow no channels
                raise reply


async def _heard(connection: IdentifiedConnection) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(_SILENCE_S):
                reply = await connection.read_reply()
        except TimeoutError as error:
            raise unavailable(ConnectionError("no hint was received for a long time")) from error
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        kind, _, data = cast(list[bytes], reply)
        if kind == b"message":
            yield data
