"""Tests of this folder run in virtual time, but for those of `servers`, of real servers and processes."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.fakes.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.new_event_loop} if "servers" in item.path.parts else {"virtual": VirtualLoop}
