"""Tests that no secret is readable: each is planted as a canary, then searched in all that the relay stores and
outputs.

That is its storage, responses, logs, metrics and reports. A field for secrets that is not planted here fails these
tests.
"""

import base64
import gzip
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel

from relay.config.problems import SECRET_FIELDS
from relay.config.receiver_entry import ReceiverEntry
from relay.config.source_entry import SourceEntry
from relay.domain.secrecy import is_secret_name
from tests.integration.buggy_relay import BUGGY
from tests.integration.test_demo import relay
from tests.servers.http import serving
from tests.servers.process import RelayProcess

ROOT: Final = Path(__file__).parents[2]
URLS: Final = {
    *("post_endpoint", "status_endpoint", "oauth2.token_url", "proxy"),
    *("callback.url", "callback.oauth2.token_url", "callback.proxy"),
}
"""Fields that may have a secret part."""
HARMLESS: Final = {"signature", "signature_digest", "token_url", "auth"}
"""Fields with names like those of secrets, which hold no secret or a URL."""


class Canaries:
    """Makes the planted secrets. `of`: the text to search for, by field."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def text(self, field: str) -> str:
        """A token, as its service made it: it looks random, also within a URL."""
        number = len(self.of)
        self.of[field] = token = f"c4n4ry{number}x9Z7q5K3{number}w1"
        return token

    def secret(self, field: str) -> str:
        """A signing secret."""
        self.of[field] = text = base64.b64encode(f"canary {len(self.of):2} of a signature!!!".encode()).decode()
        return f"whsec_{text}"

    def certificate(self, field: str) -> dict[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        name, now = x509.Name([]), datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        made = made.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
        pem = serialization.Encoding.PEM
        text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
        self.of[field] = text.splitlines()[1]
        return {
            "client_certificate": made.sign(key, hashes.SHA256()).public_bytes(pem).decode(),
            "client_key": text,
        }


def secret_fields(model: type[BaseModel], place: str = "", within: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    """Where secrets may be written below `model`, dotted. Whatever is within a field for secrets is one."""
    if model in within:  # it is made of itself, as a filter is
        return
    for name, field in model.model_fields.items():
        if name in SECRET_FIELDS:
            yield place + name
            continue
        assert name in HARMLESS or not is_secret_name(name), f"{place}{name} has to be one of SECRET_FIELDS"
        for inner in _models_in(field.annotation):
            yield from secret_fields(inner, f"{place}{name}.", (*within, model))


def _models_in(kind: object) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) in (Annotated, Union, UnionType, tuple, list, dict):
        for part in get_args(kind):
            yield from _models_in(part)


def endpoint(canaries: Canaries, field: str, url: str, place: str = "") -> dict[str, Any]:
    """All secrets of an endpoint, with or without TLS."""
    return {
        field: f"{url}/{canaries.text(place + field + ' path')}?token={canaries.text(place + field + ' query')}",
        "secret": [canaries.secret(f"{place}secret"), canaries.secret(f"{place}secret of two")],
        "bearer_token": canaries.text(f"{place}bearer_token"),
        "headers": {"x-api-key": canaries.text(f"{place}headers"), "circle-token": "p" * 9},
    }


def oauth2(canaries: Canaries, url: str, auth: str, place: str = "") -> dict[str, Any]:
    """Of an endpoint whose tokens come from a server that answers with what it got."""
    secret = canaries.text(f"{place}oauth2.client_secret")
    canaries.of[f"{place}oauth2.client_secret in a header"] = base64.b64encode(f"us:{secret}".encode()).decode()
    token_url = f"{url}/token?key={canaries.text(f'{place}oauth2.token_url')}"
    return {"token_url": token_url, "client_id": "us", "client_secret": secret, "auth": auth}


def own_request(canaries: Canaries, place: str = "") -> dict[str, Any]:
    return {"headers": {"x-token": canaries.text(f"{place}request.headers")}, "json": {"id": "${{ message.id }}"}}


def proxy(canaries: Canaries, field: str) -> str:
    return f"http://us:{canaries.text(field)}@127.0.0.1:9"


def receivers(canaries: Canaries, url: str) -> dict[str, dict[str, Any]]:
    """`plain` and `oauth` return the request in their answers; nothing listens at the URL of `tls`."""
    once = {"retry": {"max_attempts": 1}}
    plain = endpoint(canaries, "post_endpoint", f"{url}/hooks")
    status = f"{url}/status/{{message_id}}?token={canaries.text('status_endpoint')}"
    tls = endpoint(canaries, "post_endpoint", "https://127.0.0.1:9/hooks", "tls ")
    granted = endpoint(canaries, "post_endpoint", f"{url}/hooks", "oauth ")
    del granted["bearer_token"]
    return {
        "oauth": {**granted, **once, "oauth2": oauth2(canaries, url, "basic")},
        "plain": {**plain, **once, "status_endpoint": status, "request": own_request(canaries)},
        "tls": {**tls, **once, "tls": canaries.certificate("tls.client_key")},
    }


def file(canaries: Canaries, url: str) -> dict[str, Any]:
    """What only a file may say, or says of sources."""
    called = {"url": f"{url}/back", "retry": {"max_attempts": 1}, "signature": "none"}
    granted = {**called, "oauth2": oauth2(canaries, url, "body", "callback.")}
    behind = {"post_endpoint": f"{url}/behind", "retry": {"max_attempts": 1}, "proxy": proxy(canaries, "proxy")}
    return {
        "receivers": {"behind": behind},
        "sources": {
            "hooks": source(canaries, url),
            "granted": {"callback": granted},
            "own": {"callback": {**called, "request": own_request(canaries, "callback.")}},
            "behind": {"callback": {**called, "proxy": proxy(canaries, "callback.proxy")}},
        },
    }


def source(canaries: Canaries, url: str) -> dict[str, Any]:
    called = endpoint(canaries, "url", f"{url}/back", "callback.")
    called |= {"retry": {"max_attempts": 1}, "tls": canaries.certificate("callback.tls.client_key")}
    called["former_secrets"] = [{"secret": canaries.secret("callback.former_secrets"), "until": "2999-01-01T00:00:00Z"}]
    called["url"] = called["url"].replace("http://", "https://")
    return {"callback": called, "inbound": {"kind": "github", "secret": canaries.text("inbound.secret")}}


def test_each_field_for_secrets_is_planted() -> None:
    canaries = Canaries()
    receivers(canaries, "http://h")
    file(canaries, "http://h")
    canaries.secret("former_secrets")  # by a rotation
    fields = {name.partition(" ")[0] for name in canaries.of} - {"tls", "oauth"}
    assert fields == {*secret_fields(ReceiverEntry), *secret_fields(SourceEntry)} | URLS


class Outside:
    """A Sentry, and a receiver that refuses everything, with all that it was sent in its answer."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.got: list[str] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/api/1/envelope/", self._report)
        app.router.add_route("*", "/{rest:.*}", self._refuse)
        return app

    async def _report(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.reported.append((gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).decode())
        return web.json_response({})

    async def _refuse(self, request: web.Request) -> web.Response:
        body = await request.text()
        said = json.dumps({"url": str(request.url), "headers": dict(request.headers), "body": body})
        self.got.append(said)
        return web.Response(status=422, text=said)


@pytest.fixture
async def outside() -> AsyncIterator[tuple[Outside, str]]:
    found = Outside()
    async with serving(found.app()) as url:
        yield found, url


async def _asked(api: str, method: str, path: str, said: object = None, **headers: str) -> tuple[int, str]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent["content-type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
    data = None if said is None else json.dumps(said).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, api + path, data=data, headers=sent) as response,
    ):
        return response.status, f"{response.headers} {await response.text()}"


async def _mistakes(api: str, bodies: dict[str, dict[str, Any]]) -> list[str]:
    """The problems of bodies whose secrets have the wrong form, are in the wrong place, or stand beside a mistake."""
    problems = []
    for name, body in bodies.items():
        wrong = [
            {**body, "timeout": 0},
            {**body, "secrets": body["secret"]},
            {**body, "secret": {"is": body["secret"]}},
        ]
        wrong += [{**body, field: [[value]]} for field, value in body.items()]
        wrong += [{**body, "signature": "none"}, {**body, "labels": {"secret": body["secret"][0]}}]
        for each in wrong:
            status, text = await _asked(api, "POST", "/v1/receivers", {"name": f"x-{name}", **each})
            assert status == 422, text
            problems.append(text)
    return problems


async def test_no_secret_that_was_given_is_kept_or_said_anywhere(tmp_path: Path, outside: tuple[Outside, str]) -> None:
    world, url = outside
    canaries, data = Canaries(), tmp_path / "data"
    bodies = receivers(canaries, url)
    (tmp_path / "receivers.yaml").write_text(json.dumps(file(canaries, url)))
    environ = {
        "RELAY_SENTRY_DSN": url.replace("://", "://public@") + "/1",
        "RELAY_LOG_LEVEL": "debug",
        "PYTHONPATH": str(ROOT),
    }
    start = ("secret", "dev", "--port", "0", "--no-demo", "--data-dir", str(data))
    async with RelayProcess(*start, cwd=tmp_path, environ=environ, module="tests.integration.buggy_relay") as dev:
        await dev.line_with("Ready")
        api = dev.value_of("API")
        told = await _mistakes(api, bodies)
        for name, body in bodies.items():
            for status in (201, 409):
                found = await _asked(api, "POST", "/v1/receivers", {"name": name, **body})
                assert found[0] == status, found
                told.append(found[1])
            turned = {"secret": canaries.secret(f"{'' if name == 'plain' else 'tls '}former_secrets")}
            for method, path, said in (
                ("POST", f"receivers/{name}/rotate", turned),
                ("PATCH", f"receivers/{name}", {"timeout": 7}),
                ("POST", f"receivers/{name}/test", {}),
            ):
                found = await _asked(api, method, f"/v1/{path}", said)
                assert found[0] in (200, 400), found
                told.append(found[1])
            path = f"/v1/sources/hooks/messages?receiver={name}&wait=30"
            found = await _asked(api, "POST", path, {"to": name}, ce_id=f"to-{name}")
            assert found[0] == 502, found
            told += [found[1], (await _asked(api, "GET", f"/v1/sources/hooks/messages/to-{name}"))[1]]
        for path in ("granted/messages?receiver=plain", "behind/messages?receiver=behind"):
            told.append((await _asked(api, "POST", f"/v1/sources/{path}&wait=30", {}))[1])
        await dev.lines_with("callback_exhausted", 3)
        told.append((await _asked(api, "POST", "/v1/sources/hooks/messages?receiver=plain", {}, ce_id=BUGGY))[1])
        await dev.line_with("step_crashed")
        paths = ["receivers", "receivers/plain", "receivers/oauth", "failed", "audit", "sources/hooks/callback", "keys"]
        told += [(await _asked(api, "GET", f"/v1/{path}"))[1] for path in paths]
        told += [(await _asked(api, "GET", path))[1] for path in ("/metrics", "/readyz?verbose", "/openapi.json", "/")]
        told.append((await _asked(api, "POST", "/v1/in/hooks", {"no": "signature"}))[1])
        for command in (
            ("failed", "list", "-o", "json"),
            ("receivers", "show", "tls"),
            ("status", "hooks", "to-plain"),
        ):
            told.append((await relay(dev, *command))[1])
    reports = "\n".join(world.reported)
    assert '"tls: exhausted"' in reports
    assert "_Bug" in reports
    got = "\n".join(world.got)
    assert canaries.of["bearer_token"] in got, "the receiver has them"
    assert canaries.of["headers"] in got
    assert canaries.of["oauth2.client_secret in a header"] in got
    assert canaries.of["callback.oauth2.client_secret"] in got
    assert canaries.of["post_endpoint path"] in got
    tokens = re.findall(r"/v1/answers/([\w-]+)", got)
    assert tokens
    canaries.of |= {f"the answer URL of request {number}": token for number, token in enumerate(tokens)}
    kept = b"\n".join(path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()).decode(errors="replace")
    assert "${enc:" in kept
    places = {"kept": kept, "said": "\n".join(told), "logged": "\n".join(dev.lines), "reported": reports}
    found_at = itertools.product(canaries.of.items(), places.items())
    assert [(field, place) for (field, canary), (place, text) in found_at if canary in text] == []
