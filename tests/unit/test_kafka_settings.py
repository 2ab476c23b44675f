"""Kafka security settings that cannot work, or would show the password, are refused before anything connects."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from relay.domain.errors import UserError
from relay.log.kafka.cluster import KafkaCluster, KafkaSecurity
from tests.servers.certificates import Authority


def test_a_password_is_not_sent_in_the_clear() -> None:
    with pytest.raises(UserError, match="SASL_SSL"):
        KafkaSecurity("SASL_PLAINTEXT", "PLAIN", "user", "secret")


@pytest.mark.parametrize(("user", "password"), [(None, None), ("user", None), (None, "secret")])
def test_sasl_needs_a_user_and_a_password(user: str | None, password: str | None) -> None:
    with pytest.raises(UserError, match="needs a user and a password"):
        KafkaSecurity("SASL_SSL", "SCRAM-SHA-256", user, password)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(KafkaSecurity("SASL_PLAINTEXT", user="user", password="secret"))


@pytest.mark.parametrize(
    ("of", "content"),
    [("ca_file", None), ("ca_file", "not a certificate"), ("certificate_file", "not a certificate")],
    ids=["no authority's file", "an authority's that is none", "a certificate of ours that is none"],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, of: str, content: str | None) -> None:
    file = tmp_path / "wrong.pem"
    if content is not None:
        file.write_text(content)
    security: dict[str, Any] = {of: str(file)}
    with pytest.raises(UserError, match=str(file)):
        KafkaCluster("127.0.0.1:9092", security=KafkaSecurity("SSL", **security))


def test_host_names_are_checked() -> None:
    context = KafkaSecurity("SSL").ssl_context()
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    file = Authority(tmp_path).issue("relay")
    secret = tmp_path / "secret.pem"
    key = load_pem_private_key(file.read_bytes(), None)
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase")))
    with pytest.raises(UserError, match="without a passphrase"):
        KafkaSecurity("SSL", certificate_file=str(file), key_file=str(secret)).ssl_context()


async def presented_by(cluster: KafkaCluster, authority: Authority, server: Path) -> str:
    """The subject of the certificate that the client presents on a new connection."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.load_cert_chain(server)
    context.verify_mode = ssl.CERT_REQUIRED
    seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context) as listening:
        host, port = listening.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(host, port, ssl=cluster.ssl_context)
        subject = x509.load_der_x509_certificate(await seen).subject.rfc4514_string()
        writer.close()
    return subject


async def test_a_certificate_that_is_replaced_is_used_by_the_next_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    server, own = authority.issue("server"), authority.issue("before")
    security = KafkaSecurity("SSL", ca_file=str(authority.file), certificate_file=str(own))
    cluster = KafkaCluster("127.0.0.1:9092", security=security)
    assert await presented_by(cluster, authority, server) == "CN=before"

    own.write_bytes(b"half of one")
    with caplog.at_level(logging.WARNING, "relay.log.kafka"):
        for _ in range(2):
            await cluster.renew()
    # without records about leftovers of other tests, which may be collected at any time
    [refused] = [each for each in caplog.records if each.name.startswith("relay.")]
    assert refused.message == "kafka_certificates_refused"
    assert str(own) in vars(refused)["error"]
    assert await presented_by(cluster, authority, server) == "CN=before"

    authority.issue("after").replace(own)
    await cluster.renew()
    assert await presented_by(cluster, authority, server) == "CN=after"
