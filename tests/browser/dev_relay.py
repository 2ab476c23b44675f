"""A real relay on the embedded engine in a separate process, with the receivers and sources that a test registers."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from aiohttp import ClientSession, ClientTimeout
from yarl import URL

from tests.servers.asking import until
from tests.servers.process import RelayProcess


class DevRelay:
    """Runs during the `async with` block. `environ`: further settings. `key`: the API key that it requires, if any.
    `data`: the directory that it keeps; None: a temporary one. `module`: run instead of the relay. `port`: 0 for a
    free one."""

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
        data: Path | None = None,
        module: str = "relay",
        port: int = 0,
    ) -> None:
        place = ("--ephemeral",) if data is None else ("--data-dir", str(data))
        own = {} if key is None else {"RELAY_API_KEY": key}
        self.process = RelayProcess(
            *("dev", "--port", str(port), "--no-demo", *place),
            cwd=directory,
            environ={"RELAY_LOG_FORMAT": "json"} | own | dict(environ or {}),
            module=module,
        )
        self.url = ""
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client: ClientSession | None = None

    async def __aenter__(self) -> Self:
        await self.process.__aenter__()
        try:
            await self.process.line_with("Ready")
        except BaseException as error:
            await self.process.__aexit__(type(error), error, error.__traceback__)
            raise
        self.url = self.process.value_of("API")
        self._client = ClientSession(headers=self._headers, timeout=ClientTimeout(total=30))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()
        await self.process.__aexit__(kind, error, trace)

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """The JSON of the API's response. `path` is percent-encoded. Fails unless the status is 2xx."""
        assert self._client is not None, "not started"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, dict) and "content-type" not in named:
            named["content-type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        url = URL(self.url + path, encoded=True)
        async with self._client.request(method, url, data=data, headers=named) as response:
            text = await response.text()
            assert response.status < 300, f"{method} {path}: {response.status} {text}"
            return json.loads(text) if text else None

    async def receiver(self, name: str, url: str, **settings: object) -> Any:
        """Register one, unsigned unless `settings` say otherwise."""
        return await self.call("POST", "/v1/receivers", {"name": name, "post_endpoint": url, **settings})

    async def source(self, source_id: str, **settings: object) -> Any:
        return await self.call("POST", "/v1/sources", {"source_id": source_id, **settings})

    async def send(
        self, source_id: str, message_id: str, payload: bytes = b"{}", *, to: str | None = None, **headers: str
    ) -> Any:
        """Send a message, with further headers, and return what the 202 says."""
        named = {"ce_id": quote(message_id, safe=""), "content_type": "application/json"} | headers
        query = "" if to is None else f"?receiver={to}"
        return await self.call("POST", f"/v1/sources/{quote(source_id, safe='')}/messages{query}", payload, **named)

    async def message(self, source_id: str, message_id: str) -> Any:
        """The message, as the API returns it."""
        return await self.call("GET", f"/v1/sources/{quote(source_id, safe='')}/messages/{quote(message_id, safe='')}")

    async def until_status(self, source_id: str, message_id: str, status: str) -> Any:
        """The message, as the API returns it, once it has that status."""
        found: dict[str, Any] = {}

        async def look() -> bool:
            found.update(await self.message(source_id, message_id))
            return bool(found["status"] == status)

        await until(look)
        return found
