"""Base class of the transport contracts: fixtures and requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import TypeVar

import pytest
import uvloop

from relay.delivery.guard import AddressGuard
from relay.delivery.port import Transport
from relay.domain.exchange import Request
from tests.contract.conftest import LoopFactory

BODY_CAP = 1000
LOOPBACK = AddressGuard([ip_network("127.0.0.0/8"), ip_network("::1/128")])


def post(
    url: str, *, body: bytes = b"{}", timeout_s: float = 60.0, headers: tuple[tuple[str, str], ...] = ()
) -> Request:
    return Request("POST", url, headers, body, timeout_s)


T = TypeVar("T", bound=Transport)
LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@contextlib.asynccontextmanager
async def running(transport: T) -> AsyncIterator[T]:
    await transport.start()
    try:
        yield transport
    finally:
        await transport.close()


class TransportRig:
    """Subclasses `make` a transport. The fixture `certificate` is in conftest.py."""

    def make(self, guard: AddressGuard, *, body_cap: int, ca_file: str | None) -> Transport:
        raise NotImplementedError

    @pytest.fixture
    async def transport(self) -> AsyncIterator[Transport]:
        async with self.started(LOOPBACK) as transport:
            yield transport

    @contextlib.asynccontextmanager
    async def started(self, guard: AddressGuard, ca_file: str | None = None) -> AsyncIterator[Transport]:
        async with running(self.make(guard, body_cap=BODY_CAP, ca_file=ca_file)) as transport:
            yield transport
