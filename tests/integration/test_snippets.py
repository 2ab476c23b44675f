"""Every command, program and file in README and docs/ is tried as its page says (tests/documents.py has the marks).

What is to be run of a page runs in one shell, in order, in a folder of its own, beside a relay that all pages share.
"""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from relay.config.receivers_file import parse_receivers_file
from tests.documents import PAGES, Fence, fences, named
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


def where(fence: Fence) -> str:
    return fence.mark.value if fence.mark is not None else ""


TIMEOUT_S = 100.0
END = "--- end of a fence ---"
RUN = [fence for page in PAGES for fence in fences(page) if fence.mark is not None and fence.mark.what == "run"]
SHELL = {page: [fence for fence in RUN if fence.page == page and where(fence) in ("shell", "dev")] for page in PAGES}
FILES = [fence for fence in RUN if fence.language == "yaml" and not where(fence).startswith("tests/")]
ENVIRON = {"GITHUB_WEBHOOK_SECRET": "It's a Secret to Everybody", "CI_SECRET": "whsec_" + "A" * 32}
RECEIVERS = {
    "sources": {
        "github": {"inbound": {"kind": "github", "secret": "${GITHUB_WEBHOOK_SECRET}", "receivers": ["ci"]}},
    },
    "receivers": {"build": {"post_endpoint": "http://127.0.0.1:9000/hooks"}},
}
BEFORE = r"""
set -eu
curl() { command curl --silent --show-error --fail-with-body --max-time 40 "$@"; }
until_printed() {  # TEXT FILE: runs FILE until it has printed TEXT, then stops it and all that it has started
    set -m; bash -eu "$2" > until.txt 2>&1 & local pid=$!; set +m
    local left=300
    until grep -qF -- "$1" until.txt; do
        if ! kill -0 $pid 2> /dev/null || ! (( left-- )); then
            cat until.txt; echo "not printed: $1"; kill -KILL -- -$pid; return 1
        fi
        sleep 0.1
    done
    kill -TERM -- -$pid; wait $pid || true; cat until.txt
}
"""


@dataclass(frozen=True, slots=True)
class Served:
    """Where there is a relay, and a receiver to play with."""

    api: str
    receiver: str

    def placed(self, text: str) -> str:
        """With these addresses in place of those that pages have, which are the defaults."""
        text = text.replace("http://127.0.0.1:8080", self.api).replace("http://localhost:8080", self.api)
        return text.replace("http://127.0.0.1:9000", self.receiver)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("dev")
    async with AsyncExitStack() as stack:
        sink = await stack.enter_async_context(RelayProcess("sink", "--port", "0", cwd=folder))
        receiver = (await sink.line_with("post_endpoint")).split()[-1].removesuffix("/hooks")
        (folder / "receivers.yaml").write_text(json.dumps(RECEIVERS).replace("http://127.0.0.1:9000", receiver))
        dev = RelayProcess("dev", "--port", "0", "--data-dir", str(folder / "data"), cwd=folder, environ=ENVIRON)
        await stack.enter_async_context(dev)
        await dev.line_with("Ready")
        yield Served(dev.value_of("API"), receiver)


@pytest.mark.parametrize("page", [page for page in PAGES if SHELL[page]], ids=named)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_a_page_can_be_followed(page: Path, served: Served, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    chosen = SHELL[page]
    script = BEFORE + "".join(served.placed(shell(fence, tmp_path)) for fence in chosen)
    code, output = await run(script, served, tmp_path)
    parts = output.split(f"{END}\n")
    if code != 0:
        fence = chosen[len(parts) - 1]
        pytest.fail(f"{fence} ended with {code}:\n{fence.text}\n{parts[-1]}", pytrace=False)
    for fence, printed in zip(chosen, parts, strict=False):
        assert fence.mark is not None
        for expected in fence.mark.all("prints"):
            assert served.placed(expected) in printed, f"{fence}:\n{printed}"


def shell(fence: Fence, folder: Path) -> str:
    """Commands that do what the fence says, and fail if it does not do what is said of it."""
    assert fence.mark is not None
    text = fence.text
    if fence.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    elif fence.language == "python":
        (folder / f"line{fence.line}.py").write_text(text)
        text = f"python line{fence.line}.py"
    first = "".join(f"{command}\n" for command in fence.mark.all("first"))
    until, code = "".join(fence.mark.all("until")), "".join(fence.mark.all("exit")) or "0"
    if until:
        file = f"line{fence.line}.sh"
        text = f"cat > {file} <<'{END}'\n{text}\n{END}\nuntil_printed {shlex.quote(until)} {file}"
    elif code != "0":
        text = (
            f"set +e\n( set -e\n{text}\n)\nended=$?\nset -e\ntest $ended = {code} || ( echo ended with $ended; exit 1 )"
        )
    return f"{first}{text}\necho\necho '{END}'\n"


async def run(script: str, served: Served, folder: Path) -> tuple[int, str]:
    """Its exit code, and what it prints on both streams."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(folder), "RELAY_API_URL": served.api, "COLUMNS": "200"}
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        script,
        cwd=folder,
        env=clean | ENVIRON | own,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, output.decode(errors="replace")


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
