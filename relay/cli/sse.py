"""Server-sent events of the API, as the commands follow them."""

import json
from collections.abc import AsyncIterator, Mapping

import aiohttp

from relay.cli.client import ApiBusy, ApiFailed, Client
from relay.client.sse import SILENT_S, EventReader, ServerSentEvent
from relay.domain.failure import tls_failure


class EventStream(Client):
    """A client that follows events."""

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
