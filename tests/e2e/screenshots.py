"""`python -m tests.e2e.screenshots`: takes the pictures for docs/tutorial-green-check.md from a running relay and
Buildbot."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.browser.chromium import running_chromium
from tests.browser.screenshots import IMAGES, Picture, take
from tests.e2e.test_green_check import running_systems, with_presets

_PUSHES: Final = 12
"""Some of their builds fail."""


async def main() -> None:
    with TemporaryDirectory() as folder:
        async with running_systems(Path(folder), with_presets) as systems, running_chromium() as browser:
            systems.push(_PUSHES)
            await systems.until_finished(_PUSHES)
            message = Picture(f"/ui/messages/github/{systems.github.deliveries[1].guid}")
            builder = Picture("/#/builders/1", after="tbody tr")
            await take(browser, f"http://127.0.0.1:{systems.port}", message, IMAGES / "green-check-message.png")
            await take(browser, systems.buildbot.url, builder, IMAGES / "green-check-buildbot.png")


if __name__ == "__main__":
    asyncio.run(main())
