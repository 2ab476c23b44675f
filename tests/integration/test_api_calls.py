"""Tests of the calls that /docs shows for each route, with curl and with Python: each gets the documented response."""

import asyncio
import os
import shutil
import subprocess

import pytest

from relay.api.pages import BASE, ExampleCall, call_of, curl, python
from relay.api.route import Route
from relay.api.routes import ROUTES
from tests.integration.api_rig import Rig
from tests.integration.api_world import KEY, described, world_for
from tests.integration.api_world import only_read as only_read

pytestmark = pytest.mark.asyncio(loop_scope="module")


def call(method: str, path: str) -> ExampleCall:
    return call_of(method, path, described()["paths"][path][method])


@pytest.mark.parametrize("operation", ROUTES.values(), ids=lambda operation: str(operation.id))
async def test_a_call_with_curl(operation: Route, only_read: Rig) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    async with world_for(operation, only_read) as rig:
        line = curl(call(operation.method.lower(), operation.path)).replace(BASE, rig.url)
        done = await asyncio.to_thread(
            subprocess.run,
            ["sh", "-c", line.replace("curl -i", "curl -i -sS --max-time 20")],
            env={**os.environ, "RELAY_API_KEY": KEY},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split()[1] == str(operation.example.status), done.stdout


@pytest.mark.parametrize("operation", ROUTES.values(), ids=lambda operation: str(operation.id))
async def test_a_call_with_python(operation: Route, only_read: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with world_for(operation, only_read) as rig:
        source = python(call(operation.method.lower(), operation.path)).replace(BASE, rig.url)
        printed: list[object] = []
        here = {"print": lambda *words: printed.extend(words)}
        await asyncio.to_thread(exec, compile(source, operation.id, "exec"), here)
    assert printed[0] == operation.example.status, printed


async def test_how_they_look() -> None:
    assert curl(call("post", "/v1/replays")) == (
        "curl -i -X POST http://127.0.0.1:8080/v1/replays \\\n"
        '  -H "authorization: Bearer $RELAY_API_KEY" \\\n'
        "  -H 'content-type: application/json' \\\n"
        """  --data-binary '{"receiver": "ci", "since": "2d", "rate": 10}'"""
    )
    path = "/v1/sources/{source_id}/messages/{message_id}"
    assert curl(call("get", path)) == (
        "curl -i http://127.0.0.1:8080/v1/sources/github/messages/sent-1 \\\n"
        '  -H "authorization: Bearer $RELAY_API_KEY"'
    )
    assert python(call("get", "/livez")) == (
        "import requests\n\n"
        'response = requests.get("http://127.0.0.1:8080/livez", timeout=60)\n'
        "print(response.status_code, response.text)"
    )
    assert python(call("post", "/v1/sources/{source_id}/messages")) == (
        "import os\n\nimport requests\n\n"
        "response = requests.post(\n"
        '    "http://127.0.0.1:8080/v1/sources/github/messages",\n'
        '    params=[("receiver", "ci")],\n'
        """    headers={"Authorization": f"Bearer {os.environ['RELAY_API_KEY']}", "ce-id": "my-first"},\n"""
        '    json={"hello": "world"},\n'
        "    timeout=60,\n"
        ")\n"
        "print(response.status_code, response.text)"
    )


async def test_the_page_has_both_for_every_route(only_read: Rig) -> None:
    text = (await only_read.get("/docs")).text
    assert text.count("<h3>With curl</h3>") == text.count("<h3>With Python</h3>") == len(ROUTES)
