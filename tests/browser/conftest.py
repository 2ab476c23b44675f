"""Fixtures of the browser tests: one Chromium, and for each test a page whose errors fail the test."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.chromium import running_chromium
from tests.browser.dev_relay import DevRelay
from tests.browser.visitor import Visitor, visitor_at


class Visiting(Protocol):
    """Opens a window on pages below `url`; `options` are those of playwright's `new_context`."""

    def __call__(self, url: str, **options: object) -> AbstractAsyncContextManager[Visitor]: ...


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """A browser belongs to the event loop that it was started on: the tests that share it run on one loop."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)  # before the one of the auto mode


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with running_chromium() as browser:
        yield browser


@pytest.fixture
def visiting(chromium: Browser) -> Visiting:
    return partial(visitor_at, chromium)


@pytest_asyncio.fixture(loop_scope="session")
async def dev(tmp_path: Path) -> AsyncIterator[DevRelay]:
    """A relay on the embedded engine for one test, without receivers and sources."""
    async with DevRelay(tmp_path) as relay:
        yield relay


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(dev: DevRelay, visiting: Visiting) -> AsyncIterator[Visitor]:
    """A browser page of the relay `dev`, which has opened nothing yet."""
    async with visiting(dev.url) as visitor:
        yield visitor
