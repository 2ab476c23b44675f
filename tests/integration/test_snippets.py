"""Every command, program and file in README and docs/ is run as its page says (tests/documents.py has the marks).

The snippets of a page run in one shell, in order, in a folder of their own. They share a relay with all pages, or the
page starts its own relay and receiver.
"""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from bench.kafka_parts import free_ports
from relay.config.receivers_file import parse_receivers_file
from tests.documents import PAGES, Fence, fences, named
from tests.page_shell import ENVIRON, TIMEOUT_S, Served, follow
from tests.servers.process import RelayProcess, relay_dev

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(TIMEOUT_S + 60)]


def where(fence: Fence) -> str:
    return fence.mark.value if fence.mark is not None else ""


RUN = [fence for page in PAGES for fence in fences(page) if fence.mark is not None and fence.mark.what == "run"]
SHELL = {
    page: [fence for fence in RUN if fence.page == page and where(fence) in ("shell", "dev", "own")] for page in PAGES
}
OWN = {page for page, chosen in SHELL.items() if "own" in map(where, chosen)}
FILES = [fence for fence in RUN if where(fence) in ("receivers", "receiver", "source")]
INBOUND = {"kind": "github", "secret": "${GITHUB_WEBHOOK_SECRET}", "receivers": ["ci"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("dev")
    async with AsyncExitStack() as stack:
        sinks = [await stack.enter_async_context(RelayProcess("sink", "--port", "0", cwd=folder)) for _ in range(2)]
        receiver, sender = [(await sink.line_with("post_endpoint")).split()[-1] for sink in sinks]
        sources = {"github": {"inbound": INBOUND, "callback": {"url": sender}}}
        receivers = {"build": {"post_endpoint": receiver}}
        (folder / "receivers.yaml").write_text(json.dumps({"sources": sources, "receivers": receivers}))
        kept = ("--data-dir", str(folder / "data"))
        dev = await stack.enter_async_context(relay_dev(folder, *kept, environ=ENVIRON))
        yield Served(dev.value_of("API"), receiver.removesuffix("/hooks"))


@pytest.mark.parametrize("page", [page for page in PAGES if SHELL[page] and page not in OWN], ids=named)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_a_page_can_be_followed(page: Path, served: Served, tmp_path: Path) -> None:
    await follow(SHELL[page], served, tmp_path, {"RELAY_API_URL": served.api})


@pytest.mark.parametrize("page", sorted(OWN), ids=named)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_a_tutorial_can_be_followed(page: Path, tmp_path: Path) -> None:
    api, receiver = free_ports(2)
    own = Served(f"http://127.0.0.1:{api}", f"http://127.0.0.1:{receiver}")
    await follow(SHELL[page], own, tmp_path, {"RELAY_API_PORT": str(api), "PORT": str(receiver)})


@pytest.mark.parametrize("fence", FILES, ids=str)
async def test_a_file_can_be_used(fence: Fence) -> None:
    document = yaml.safe_load(fence.text)
    endpoint = {"post_endpoint": "https://ci.example/hooks", "sources": ["*"], "event_types": ["*"]}
    whole = {
        "receivers": document,
        "receiver": {"receivers": {"ci": endpoint | document}},
        "source": {"sources": {"github": document}},
    }[where(fence)]
    parse_receivers_file(yaml.safe_dump(whole), str(fence))
