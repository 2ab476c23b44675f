"""Every command, program and file in README and docs/ is tried as its page says (tests/documents.py has the marks).

What is to be run of a page runs in one shell, in order, in a folder of its own, beside a relay that all pages share; or
with relay and receiver of its own, which the page starts.
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

from bench.kafka_parts import free_ports
from relay.config.receivers_file import parse_receivers_file
from tests.documents import PAGES, Fence, fences, named
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


def where(fence: Fence) -> str:
    return fence.mark.value if fence.mark is not None else ""


TIMEOUT_S = 60.0
END = "--- end of a fence ---"
RUN = [fence for page in PAGES for fence in fences(page) if fence.mark is not None and fence.mark.what == "run"]
SHELL = {
    page: [fence for fence in RUN if fence.page == page and where(fence) in ("shell", "dev", "own")] for page in PAGES
}
OWN = {page for page, chosen in SHELL.items() if "own" in map(where, chosen)}
FILES = [fence for fence in RUN if where(fence) in ("receivers", "receiver", "source")]
ENVIRON = {"GITHUB_WEBHOOK_SECRET": "It's a Secret to Everybody", "CI_SECRET": "whsec_" + "A" * 32}
INBOUND = {"kind": "github", "secret": "${GITHUB_WEBHOOK_SECRET}", "receivers": ["ci"]}
BEFORE = r"""
set -eu
trap "exit 124" TERM
served=
trap 'for pid in $served; do kill -TERM -- -$pid; done; for pid in $served; do ended $pid; done' EXIT
ended() { wait $1 || true; while kill -0 -- -$1 2> /dev/null; do sleep 0.1; done; }  # the shell ends before its relay
curl() { command curl --silent --show-error --fail-with-body --max-time 40 "$@"; }
relay() {
    if [ "$1" = sink ] && [ -n "${PORT-}" ]; then command relay "$@" --port "$PORT"; else command relay "$@"; fi
}
export -f curl relay
serve() {  # TEXT FILE: runs FILE, and comes back when it has printed TEXT; at the end of the page it is stopped
    set -m; bash -eu "$2" > "$2.txt" 2>&1 & local pid=$!; set +m
    served="$served $pid"
    local left=300
    until grep -qF -- "$1" "$2.txt"; do
        if ! kill -0 $pid 2> /dev/null || ! (( left-- )); then cat "$2.txt"; echo "not printed: $1"; return 1; fi
        sleep 0.1
    done
}
until_printed() {  # TEXT FILE: likewise, and stops it and all that it has started
    serve "$1" "$2"
    local pid=${served##* }; served=${served% *}
    kill -TERM -- -$pid; ended $pid; cat "$2.txt"
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
        sinks = [await stack.enter_async_context(RelayProcess("sink", "--port", "0", cwd=folder)) for _ in range(2)]
        receiver, sender = [(await sink.line_with("post_endpoint")).split()[-1] for sink in sinks]
        sources = {"github": {"inbound": INBOUND, "callback": {"url": sender}}}
        receivers = {"build": {"post_endpoint": receiver}}
        (folder / "receivers.yaml").write_text(json.dumps({"sources": sources, "receivers": receivers}))
        dev = RelayProcess("dev", "--port", "0", "--data-dir", str(folder / "data"), cwd=folder, environ=ENVIRON)
        await stack.enter_async_context(dev)
        await dev.line_with("Ready")
        yield Served(dev.value_of("API"), receiver.removesuffix("/hooks"))


@pytest.mark.parametrize("page", [page for page in PAGES if SHELL[page] and page not in OWN], ids=named)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_a_page_can_be_followed(page: Path, served: Served, tmp_path: Path) -> None:
    await follow(page, served, tmp_path, {"RELAY_API_URL": served.api})


@pytest.mark.parametrize("page", sorted(OWN), ids=named)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_a_tutorial_can_be_followed(page: Path, tmp_path: Path) -> None:
    api, receiver = free_ports(2)
    own = Served(f"http://127.0.0.1:{api}", f"http://127.0.0.1:{receiver}")
    await follow(page, own, tmp_path, {"RELAY_API_PORT": str(api), "PORT": str(receiver)})


async def follow(page: Path, served: Served, folder: Path, environ: dict[str, str]) -> None:
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    chosen = SHELL[page]
    code, output = await run(BEFORE + "".join(served.placed(shell(fence)) for fence in chosen), folder, environ)
    parts = output.split(f"{END}\n")
    if code != 0:
        fence = chosen[min(len(parts), len(chosen)) - 1]
        pytest.fail(f"{fence} ended with {code}:\n{fence.text}\n{parts[-1]}", pytrace=False)
    for fence, printed in zip(chosen, parts, strict=False):
        assert fence.mark is not None
        for expected in fence.mark.all("prints"):
            assert served.placed(expected) in printed, f"{fence}:\n{printed}"


def shell(fence: Fence) -> str:
    """Commands that do what the fence says, and fail if it does not do what is said of it."""
    assert fence.mark is not None
    text, file = fence.text, f"line{fence.line}"
    if fence.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    written = "".join(fence.mark.all("file"))
    if fence.language == "python" and not written:
        text = f"{here(text, f'{file}.py')}\npython {file}.py"
    until, served = "".join(fence.mark.all("until")), "".join(fence.mark.all("serve"))
    code = "".join(fence.mark.all("exit")) or "0"
    if written:
        text = here(text, written)
    elif until or served:
        text = f"{here(text, file)}\n{'until_printed' if until else 'serve'} {shlex.quote(until or served)} {file}"
    elif code != "0":
        checked = f"test $ended = {code} || ( echo ended with $ended; exit 1 )"
        text = f"set +e\n( set -e\n{text}\n)\nended=$?\nset -e\n{checked}"
    first = "".join(f"{command}\n" for command in fence.mark.all("first"))
    return f"{first}{text}\necho\necho '{END}'\n"


def here(text: str, file: str) -> str:
    """The command that writes it."""
    return f"cat > {file} <<'{END}'\n{text.rstrip()}\n{END}"


async def run(script: str, folder: Path, environ: dict[str, str]) -> tuple[int, str]:
    """Its exit code, and what it prints on both streams."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(folder), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    with (folder / "output.txt").open("w+b") as output:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            script,
            cwd=folder,
            env=clean | ENVIRON | own | environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            await asyncio.wait_for(process.wait(), TIMEOUT_S)
        except TimeoutError:
            process.terminate()  # what it serves is then stopped
            await process.wait()
        output.seek(0)
        return process.returncode or 0, output.read().decode(errors="replace")


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
