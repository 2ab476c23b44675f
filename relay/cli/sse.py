"""Server-sent events of the API, as the commands follow them."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple

import aiohttp

from relay.cli.client import ApiBusy, ApiFailed, Client
from relay.domain.failure import tls_failure

SILENT_S: Final = 60.0
"""After which a stream without a sign of life is given up: the API gives one each 15 seconds."""
_LARGEST: Final = 8 * 1024**2


class ServerSentEvent(NamedTuple):
    """`data`: its JSON, decoded."""

    name: str
    data: Any


class EventReader:
    """Puts events together from the bytes of a stream. Pure. What is no event of ours is passed over."""

    def __init__(self, most_bytes: int = _LARGEST) -> None:
        self._left = b""
        self._most_bytes = most_bytes

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """The events that are complete with these bytes. Raises ValueError where one is too large."""
        *blocks, self._left = (self._left + data).split(b"\n\n")
        for block in blocks:
            event = _event(block)
            if event is not None:
                yield event
        if len(self._left) > self._most_bytes:
            raise ValueError(f"an event of more than {self._most_bytes} bytes")


def _event(block: bytes) -> ServerSentEvent | None:
    fields = dict(line.split(": ", 1) for line in block.decode(errors="replace").split("\n") if ": " in line)
    try:
        return ServerSentEvent(fields["event"], json.loads(fields["data"]))
    except (KeyError, ValueError, RecursionError):
        return None


class EventStream(Client):
    """A client that follows what happens."""

    async def events(self, path: str, params: list[tuple[str, str]]) -> AsyncIterator[ServerSentEvent]:
        """Until the API ends the stream. Raises ApiFailed; ApiBusy where it may be tried again."""
        patience = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S / 2, sock_read=SILENT_S)
        reader = EventReader()
        try:
            async with self._session.get(
                self._base + path, headers=self._headers, params=params, timeout=patience, allow_redirects=False
            ) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise self._refused(response.status, response.headers, await response.text(errors="replace"), path)
                async for data in response.content.iter_any():
                    for event in reader.feed(data):
                        yield event
        except aiohttp.ClientSSLError as error:
            raise ApiFailed(f"no TLS connection to {self._base}: {tls_failure(str(error))}") from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            raise ApiBusy(
                f"no relay answers at {self._base}: is `relay dev` or `relay run` up? ({error or 'timeout'})"
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise ApiFailed(f"GET {self._base}{path}: {error}") from error

    def _refused(self, status: int, headers: Mapping[str, str], text: str, path: str) -> ApiFailed:
        media_type = headers.get("content-type", "").partition(";")[0]
        if media_type != "application/problem+json":
            return self._stranger(status, media_type)
        problem = json.loads(text)
        failure = ApiBusy if status == 503 else ApiFailed
        hint = f"; {self.key_hint()}" if status == 401 else ""
        return failure(f"GET {path}: {status} {problem.get('title')}: {problem.get('detail')}{hint}")
