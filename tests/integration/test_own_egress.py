"""Test of a receiver with its own authority, client certificate, pin and access token, through a whole relay."""

import asyncio
import json
from pathlib import Path

from tests.contract.raw_server import Server
from tests.fakes.certificates import authority, issued
from tests.integration.test_demo import relay
from tests.servers.process import relay_dev

AUTHORITY = authority()
SERVER = issued(AUTHORITY)
CLIENT = issued(AUTHORITY, "relay.example")
TOKEN, SECRET = "t0ken-4711-canary", "client-s3cret-canary"


def server() -> Server:
    """Token endpoint and receiver in one; it repeats the token."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await made.read_request(reader)
            said = {"access_token": TOKEN, "expires_in": 600} if b"POST /token" in request else {"you": TOKEN}
            body = json.dumps(said).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    made = Server(script)
    return made


async def test_tls_and_a_token_of_its_own(tmp_path: Path) -> None:
    async with server().running(context=SERVER.server_context(AUTHORITY)) as ci:
        tls = {"ca": AUTHORITY.pem, "client_certificate": CLIENT.pem, "client_key": CLIENT.key_pem}
        oauth2 = {"token_url": ci.url("/token", scheme="https"), "client_id": "relay", "client_secret": SECRET}
        entry = {"post_endpoint": ci.url("/hooks", scheme="https"), "oauth2": oauth2, "retry": {"max_attempts": 1}}
        receivers = {
            "ci": entry | {"tls": tls | {"pinned": [SERVER.pin_of_key]}},
            "wrong": entry | {"tls": tls | {"pinned": [CLIENT.pin_of_key]}},
        }
        (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": receivers}))
        async with relay_dev(tmp_path, "--no-demo") as dev:
            sent = ("send", "--source", "builds", "--wait", "20", "--receiver")
            code, answered = await relay(dev, *sent, "ci", "-", stdin=b"{}")
            assert code == 0, answered
            code, failed = await relay(dev, *sent, "wrong", "-", stdin=b"{}")
            assert code == 1
            code, listed = await relay(dev, "receivers", "list", "-o", "json")
            assert code == 0
            said = "\n".join((answered, failed, listed, *dev.lines))
    assert '"you": "********"' in answered
    assert "not one of the pinned ones" in failed
    assert [request.split(b" HTTP")[0] for request in ci.requests] == [b"POST /token", b"POST /hooks", b"POST /token"]
    assert f"authorization: Bearer {TOKEN}".encode() in ci.requests[1]
    assert TOKEN not in said
    assert SECRET not in said
    assert "PRIVATE KEY" not in said
