"""The HTTP API of a relay under test, as its tenants use it: each with a key for its own sources and receivers."""

import asyncio
import itertools
import json
import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from bench.kafka_parts import free_ports
from relay.domain.timing import HEADERS
from tests.faults.harness.history import Sent
from tests.faults.harness.receivers import CALLBACKS, sources_of

API: Final = "api"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_ANSWER_S: Final = 60.0
_PAUSE_S: Final = 0.5
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_REFUSED: Final = frozenset({403, 404})


class Doors:
    """The APIs of all processes: any of them takes a message, and each may be down."""

    def __init__(self, seed: int) -> None:
        self.admin, self._answer_secret = secrets.token_hex(16), secrets.token_hex(32)
        self._random = random.Random(seed)
        self._urls: list[str] = []
        self._keys: list[str] = []
        """By tenant."""

    def environ(self) -> dict[str, str]:
        """Add a process, with an address of its own."""
        [port] = free_ports(1)
        self._urls.append(f"http://127.0.0.1:{port}")
        own = {"RELAY_PUBLIC_URL": self._urls[-1], "RELAY_ANSWER_SECRET": self._answer_secret}
        return {"RELAY_API_PORT": str(port), "RELAY_API_KEY": self.admin, **own}

    async def make_keys(self) -> None:
        """Create a key for each tenant. A process has to run."""
        for tenant in range(len(CALLBACKS)):
            scopes = [f"{kind}:{name}" for kind in ("ingest", "read") for name in sources_of(tenant)]
            body = {"name": f"tenant {tenant}", "scopes": [*scopes, f"owner:tenant-{tenant}"]}
            _, made = await self._answer(self.admin, "POST", "/v1/keys", json=body)
            self._keys.append(json.loads(made)["key"])

    async def send(self, tenant: int, source: str, payload: bytes, record: Mapping[str, bytes]) -> bool:
        """Whether a process has accepted the message. `record`: the headers that it would have on Kafka. Raises
        AssertionError for a rejection that a repeat would not change."""
        about = {name: value.decode() for name, value in record.items()}
        headers = {"ce-id": about["ce_id"], "ce-type": about["ce_type"], "content-type": about["content-type"]}
        headers |= {name: value for name, value in about.items() if name in HEADERS}
        query = [("receiver", name) for name in about["ce_receiver"].split(",")]
        key, path = self._keys[tenant], f"/v1/sources/{source}/messages"
        status, said = await self._ask(key, "POST", path, params=query, data=payload, headers=headers)
        assert status < 300 or status in _AGAIN, said
        return status < 300

    async def trespasses(self, sent: Sequence[Sent]) -> list[str]:
        """Calls that a tenant's key may make on another tenant's data, or may not make on its own."""
        found, callbacks = [], list(CALLBACKS)
        # the owner of a receiver sees what others tried to send to it
        crossing = {(each.source, each.message_id) for each in sent if not each.allowed}
        own = [each for each in sent if (each.source, each.message_id) not in crossing]
        last = {callbacks.index(each.callback): each for each in own}
        for tenant, (owner, each) in itertools.product(range(len(callbacks)), last.items()):
            key, path = self._keys[tenant], f"/v1/sources/{each.source}/messages"
            status, _ = await self._answer(key, "GET", f"{path}/{each.message_id}")
            if (status in _REFUSED) is (tenant == owner):
                found.append(f"tenant {tenant} reads {each.source}: {status}")
            if tenant != owner:
                status, _ = await self._answer(key, "POST", path, params={"receiver": each.receiver}, data=b"{}")
                if status not in _REFUSED:
                    found.append(f"tenant {tenant} sends as {each.source}: {status}")
        return found

    async def _answer(self, key: str, method: str, path: str, **how: Any) -> tuple[int, str]:
        """The API's URL of the first process that has one."""
        async with asyncio.timeout(_ANSWER_S):
            while (answer := await self._ask(key, method, path, **how))[0] in _AGAIN:  # noqa: ASYNC110 - it may be down
                await asyncio.sleep(_PAUSE_S)
        return answer

    async def _ask(self, key: str, method: str, path: str, **how: Any) -> tuple[int, str]:
        """Status and body of any of the processes; 503 if it is down."""
        own = {"authorization": f"Bearer {key}"}
        try:
            async with (
                aiohttp.ClientSession(self._random.choice(self._urls), headers=own, timeout=_TIMEOUT) as session,
                session.request(method, path, **how) as response,
            ):
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 503, str(error)
