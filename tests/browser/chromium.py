"""A headless Chromium for tests, driven by playwright. Without one the tests are skipped, but fail when CI is
`true`."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import pytest
from playwright.async_api import Browser, async_playwright

_NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The shell takes a third of the CPU: it has no profiles, and none of the services of a whole browser."""
_QUIET: Final = (
    "--no-sandbox",  # containers rarely allow it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--renderer-process-limit=1",  # each window has its own anyway; this is against spare ones
)


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        _unavailable("there is no chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=_QUIET)
        try:
            yield browser
        finally:
            await browser.close()


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
