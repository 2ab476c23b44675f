"""A shell in which the fences of a page are run, in order."""

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.documents import Fence
from tests.servers.forking import fork_server

TIMEOUT_S: Final = 240.0
"""For a whole page: all that it waits for is bounded by this alone, as a busy machine starts a relay in a minute."""
FORKED: Final = Path(__file__).parent / "servers" / "forked"
"""Has the command `relay`, which does not import the whole relay each time."""
END: Final = "--- end of a fence ---"
ENVIRON: Final = {"GITHUB_WEBHOOK_SECRET": "It's a Secret to Everybody", "CI_SECRET": "whsec_" + "A" * 32}
BEFORE: Final = r"""
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
    trap 'cat "$2.txt"; echo "not printed: $1"; exit 124' TERM
    until grep -qF -- "$1" "$2.txt"; do
        if ! kill -0 $pid 2> /dev/null; then cat "$2.txt"; echo "not printed: $1"; return 1; fi
        sleep 0.1
    done
    trap "exit 124" TERM
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
    moved: Mapping[str, str] = field(default_factory=dict)
    """Other addresses of pages, and their places."""

    def placed(self, text: str) -> str:
        """With these addresses in place of those that pages have, which are the defaults."""
        text = text.replace("http://127.0.0.1:8080", self.api).replace("http://localhost:8080", self.api)
        for usual, placed in self.moved.items():
            text = text.replace(usual, placed)
        return text.replace("http://127.0.0.1:9000", self.receiver)


async def follow(
    chosen: Sequence[Fence], served: Served, folder: Path, environ: dict[str, str], timeout_s: float = TIMEOUT_S
) -> None:
    """Run these fences of a page, in one shell. Fails if one of them does, or does not print what its mark says."""
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    code, output = await run(
        BEFORE + "".join(served.placed(shell(fence)) for fence in chosen), folder, environ, timeout_s
    )
    parts = output.split(f"{END}\n")
    if code != 0:
        fence = chosen[min(len(parts), len(chosen)) - 1]
        pytest.fail(f"{fence} ended with {code}:\n{fence.text}\n{parts[-1]}", pytrace=False)
    for fence, printed in zip(chosen, parts, strict=False):
        assert fence.mark is not None
        for expected in fence.mark.all("prints"):
            assert served.placed(expected) in printed, f"{fence}:\n{printed}"


def shell(fence: Fence) -> str:
    """Commands that run the fence, and fail if it does not behave as its comment says."""
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


async def run(script: str, folder: Path, environ: dict[str, str], timeout_s: float) -> tuple[int, str]:
    """Its exit code, and what it prints on both streams."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    server = (await asyncio.to_thread(fork_server)).fileno()
    path = f"{FORKED}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(folder), "COLUMNS": "200", "PYTHONUNBUFFERED": "1", "FORK_SERVER": str(server)}
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
            pass_fds=(server,),
        )
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            process.terminate()  # what it serves is then stopped
            await process.wait()
        output.seek(0)
        return process.returncode or 0, output.read().decode(errors="replace")
