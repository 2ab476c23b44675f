"""How a client reaches and leaves a Kafka cluster, why it may be rejected, and the limits of time and size."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLCertVerificationError, SSLContext, SSLError, SSLObject
from typing import Any, Final, Literal

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.helpers import create_ssl_context

from relay.domain.errors import UserError
from relay.log.checks import HEADROOM_BYTES

FETCH_BYTES: Final = 262_144
"""Bytes of one partition in a fetch: the memory that a consumer may hold per partition. A larger record is returned
alone."""
LARGEST_BATCH: Final = 256 * 1024**2
"""Bytes; a batch that claims more is damaged."""

FETCH_ALL_BYTES: Final = 1_048_576
"""Bytes of all partitions of a broker in a fetch."""

MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
"""Default maximum bytes of a payload. Senders on Kafka may send more than the API accepts; larger ones become dead
letters."""

GATHER_S: Final = 0.25
"""Longest time for which a broker gathers `KafkaCluster.gather_bytes`."""


_CONNECT_S: Final = 5.0
_UNWIND_S: Final = 1.0
CLOSE_S: Final = 2.0
"""Time limit of closing a client or a connection."""

CHECK_FILES_EVERY_S: Final = 10.0
"""Seconds between two looks at the files of certificates."""
_LOGIN: Final = "RELAY_KAFKA_SASL_USERNAME and RELAY_KAFKA_SASL_PASSWORD"


_log = logging.getLogger(__name__)


class LoginRejected(KafkaError):  # type: ignore[misc]  # the library is untyped
    """The cluster rejects this client; the text says why, as `KafkaCluster.refusal` does."""


class Isolation(IntEnum):
    """Which records of transactional producers are read, as the protocol has it: those of transactions that are open or
    were aborted, too, or neither."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """The client's credentials, and the protection of its connections. Files are PEM. `ca_file` None: the system's
    authorities. `certificate_file`: the client's certificate (mTLS); `key_file` None: the key is in the same file.
    Raises UserError for combinations that cannot work, or that would send the password unencrypted.
    """

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        if self.protocol.startswith("SASL") and (self.user is None or self.password is None):
            raise UserError(f"Kafka security protocol {self.protocol} needs a user and a password")
        if self.protocol == "SASL_PLAINTEXT" and self.mechanism == "PLAIN":
            raise UserError("Kafka: SASL PLAIN without TLS shows the password to the network; use SASL_SSL or SCRAM")

    def ssl_context(self) -> SSLContext | None:
        """The TLS settings, host names checked; None where the protocol has no TLS."""
        if self.protocol not in ("SSL", "SASL_SSL"):
            return None
        try:
            context: SSLContext = create_ssl_context(cafile=self.ca_file)
        except OSError as error:
            raise UserError(f"Kafka CA file {self.ca_file} cannot be read: {error}") from error
        if self.certificate_file is not None:
            self._present_itself(context, self.certificate_file)
        return context

    def digest_of_files(self) -> bytes | None:
        """Identifies the content of the files; None if one cannot be read."""
        files = (self.ca_file, self.certificate_file, self.key_file)
        try:
            contents = [Path(file).read_bytes() for file in files if file is not None]
        except OSError:
            return None
        return hashlib.sha256(b"".join(contents)).digest()

    def _present_itself(self, context: SSLContext, certificate: str) -> None:
        files = certificate if self.key_file is None else f"{certificate} with key file {self.key_file}"
        try:
            context.load_cert_chain(certificate, self.key_file, password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise UserError(f"Kafka certificate file {files} cannot be used: {error}") from error


def _no_passphrase() -> str:
    """Rejects encrypted keys; otherwise the library would prompt for a passphrase at the terminal."""
    raise ValueError("the key is encrypted; give one without a passphrase")


class RenewedContext(SSLContext):
    """Each new connection uses the `newest` context: the library's clients keep the one that they were created with.
    `loaded`: the digest of the files that it was made from."""

    newest: SSLContext
    loaded: bytes | None

    def wrap_bio(self, *arguments: Any, **options: Any) -> SSLObject:
        return self.newest.wrap_bio(*arguments, **options)


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A cluster, and the client's limits. `servers`: "host:port", comma-separated.

    `request_timeout_ms`: for one request, and for a request with its repetitions (an append takes 5 s longer); then it
    raises LogUnavailable; a member's own are in GroupTiming. `max_message_bytes`: the largest payload. `isolation`: of
    all that is read. `read_partitions`: of topics whose readers read only the first partitions, their number; no others
    are written to, though an operator may have added some.
    """

    servers: str
    security: KafkaSecurity = KafkaSecurity()
    request_timeout_ms: int = 15_000
    repeat_s: float | None = None
    """Seconds for which a request with a temporary error is repeated; None: as long as a request may take."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    isolation: Isolation = Isolation.READ_COMMITTED
    gather_bytes: int = 1
    """Minimum bytes of a fetch once records have arrived. For readers without a deadline: each response costs the
    broker more than its content."""
    read_partitions: Mapping[str, int] = field(default_factory=dict)
    ssl_context: RenewedContext | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        context, loaded = None, self.security.digest_of_files()  # first: a change meanwhile is noticed then
        if (newest := self.security.ssl_context()) is not None:
            context = RenewedContext(PROTOCOL_TLS_CLIENT)
            context.newest, context.loaded = newest, loaded
        object.__setattr__(self, "ssl_context", context)

    @property
    def max_record_bytes(self) -> int:
        """Hops and dead letters add metadata to a payload. Every topic that is created allows this much, and no larger
        value is kept of a record that is read."""
        return self.max_message_bytes + HEADROOM_BYTES

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    def arguments(self) -> dict[str, Any]:
        """The arguments that every client class of the library takes."""
        return {
            "bootstrap_servers": self.servers,
            "client_id": "relay",
            "security_protocol": self.security.protocol,
            "ssl_context": self.ssl_context,
            "sasl_mechanism": self.security.mechanism,
            "sasl_plain_username": self.security.user,
            "sasl_plain_password": self.security.password,
        }

    async def follow_files(self) -> None:
        """Calls `renew` until cancelled."""
        while self.ssl_context is not None:
            await asyncio.sleep(CHECK_FILES_EVERY_S)
            await self.renew()

    async def renew(self) -> None:
        """If the files of certificates have changed, new connections use the new ones: certificates expire. Those that
        cannot be used are logged once, and the former ones stay in use."""
        context, security = self.ssl_context, self.security
        if context is None or (found := await asyncio.to_thread(security.digest_of_files)) == context.loaded:
            return
        context.loaded = found
        try:
            newest = await asyncio.to_thread(security.ssl_context)
        except UserError as error:
            _log.warning("kafka_certificates_refused", extra={"error": str(error)})
            return
        if newest is not None:
            context.newest = newest

    async def client(self, request_timeout_ms: int) -> AIOKafkaClient:
        """A connected client of the library. Raises the library's errors, LoginRejected, OSError."""
        client = AIOKafkaClient(**self.arguments(), request_timeout_ms=request_timeout_ms)
        translate_lost_connections(client)
        try:
            await self.connects(client.bootstrap())
        except BaseException:
            await ends_within(client.close())
            raise
        return client

    async def connects(self, connecting: Awaitable[None]) -> None:
        """Await `connecting`, which connects a client of the library: its error does not say that a login is rejected.
        Raises its errors, LoginRejected. Cancelled in its middle, the library leaves a connection open, so it gets the
        time to end."""
        task = asyncio.ensure_future(connecting)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await ends_within(task)
            raise
        except KafkaConnectionError as error:
            if (why := await self.refusal()) is not None:
                raise LoginRejected(why) from error
            raise

    async def connection(
        self, host: str, port: int, *, request_timeout_ms: int, max_idle_ms: int | None = None
    ) -> AIOKafkaConnection:
        """A connection to one broker, apart from those of the library's clients. Raises the library's errors, OSError,
        TimeoutError."""
        arguments = self.arguments()
        del arguments["bootstrap_servers"]
        return await create_conn(
            host, port, **arguments, request_timeout_ms=request_timeout_ms, max_idle_ms=max_idle_ms
        )

    async def refusal(self) -> str | None:
        """Why the cluster rejects this client, in a line: an error that no repeat cures, as the credentials or the
        security protocol have to change. None if a broker accepts it, or none answers.

        The library reports only that it could not connect."""
        for host, port, _ in collect_hosts(self.servers):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    connection = await self.connection(host, port, request_timeout_ms=round(_CONNECT_S * 1000))
            except (KafkaError, OSError, TimeoutError) as error:
                if (why := self._why(error)) is not None:
                    return f"Kafka at {host}:{port}: {why}"
            else:
                connection.close()
                return None
        return None

    def _why(self, error: BaseException) -> str | None:
        match error:
            case SaslAuthenticationFailed() | AuthenticationFailedError():
                return f"it rejects the password of user {self.security.user}; see {_LOGIN}"
            case UnsupportedSaslMechanismError():
                return f"it does not take {self.security.mechanism}; see RELAY_KAFKA_SASL_MECHANISM"
            case SSLCertVerificationError():
                return (
                    f"its certificate is refused: {error.verify_message}; see RELAY_KAFKA_CA_FILE and the host's name"
                )
            case SSLError():
                return (
                    f"no TLS connection: {error.reason or error}; see RELAY_KAFKA_SECURITY_PROTOCOL, and"
                    " RELAY_KAFKA_CERTIFICATE_FILE where it asks for a certificate of ours"
                )
        return self._why(error.__cause__) if error.__cause__ is not None else None


@dataclass(frozen=True, slots=True)
class GroupTiming:
    """How a consumer group notices the loss of a member, in milliseconds.

    The loss of a member is noticed after `session_timeout_ms`; a rebalance is noticed at the next heartbeat, and waits
    for `on_revoked` of each member up to `rebalance_timeout_ms`, which has to be below `request_timeout_ms`, and above
    the 5 s for requests in flight together with `commit_timeout_s`.
    """

    session_timeout_ms: int = 15_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 20_000
    request_timeout_ms: int = 30_000
    commit_timeout_s: float = 10.0


def translate_lost_connections(client: AIOKafkaClient) -> None:
    """Have `client.send` raise KafkaConnectionError if the connection was lost under the request.

    The library raises KeyError if a request times out whose connection another one has replaced meanwhile, as when a
    broker that hung returns; uvloop raises RuntimeError for a transport that was closed. Both are harmless, as any lost
    connection is; but an error that is no KafkaError ends the library's heartbeats or its producer, with a traceback.
    """
    send = client.send

    async def sent(*arguments: Any, **options: Any) -> Any:
        try:
            return await send(*arguments, **options)
        except (KeyError, RuntimeError) as error:
            raise KafkaConnectionError("the connection was lost") from error

    client.send = sent


async def ends_within(ending: Awaitable[object], timeout_s: float = CLOSE_S) -> None:
    """Run `ending`, the stop of a client, for at most `timeout_s` seconds. Raises nothing but a cancellation of the
    caller.

    aiokafka's stop() may hang while the broker is away, and may raise CancelledError without a cancellation. So it
    gets a task of its own.
    """
    task = asyncio.ensure_future(ending)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=_UNWIND_S)
    if task.done() and not task.cancelled():
        task.exception()  # marks it as retrieved: the errors of a client that stops help no caller
