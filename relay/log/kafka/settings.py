"""How to reach a Kafka cluster, and the limits of time and size that every client of it keeps to."""

from dataclasses import dataclass, field
from enum import IntEnum
from ssl import SSLContext
from typing import Final, Literal, TypedDict

from aiokafka.helpers import create_ssl_context

from relay.domain.errors import UserError

FETCH_BYTES: Final = 262_144
"""Of a partition, in one fetch: the memory a consumer may hold per partition. A larger record comes alone."""

FETCH_ALL_BYTES: Final = 1_048_576
"""Of all partitions of a broker, in one fetch."""

GATHER_S: Final = 0.25
"""For which a broker gathers `KafkaCluster.gather_bytes`, at most."""


class Isolation(IntEnum):
    """Which records of transactional producers are read, as the protocol has it: those of transactions that are open or
    were aborted, too, or neither."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """Who we are to the cluster, and how the connection is protected. Files are PEM. `ca_file` None: the system's own
    authorities. `certificate_file`: ours, for a cluster that knows users by theirs; `key_file` None: it is in there.

    Raises UserError for combinations that cannot work, or that would send the password in the clear.
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

    def _present_itself(self, context: SSLContext, certificate: str) -> None:
        files = certificate if self.key_file is None else f"{certificate} with key file {self.key_file}"
        try:
            context.load_cert_chain(certificate, self.key_file, password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise UserError(f"Kafka certificate file {files} cannot be used: {error}") from error


def _no_passphrase() -> str:
    """Else the library would ask for one on the terminal, and wait."""
    raise ValueError("the key is encrypted; give one without a passphrase")


class ClientArguments(TypedDict):
    """The arguments that every client class of the library takes."""

    bootstrap_servers: str
    client_id: str
    security_protocol: str
    ssl_context: SSLContext | None
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A cluster and how we name ourselves there. `servers`: "host:port", comma-separated.

    `request_timeout_ms`: for one request, and for a request with its repetitions; a member's own are in GroupTiming.
    `max_record_bytes`: no larger value is kept of a record that is read.
    """

    servers: str
    client_id: str
    security: KafkaSecurity
    ssl_context: SSLContext | None
    request_timeout_ms: int = 15_000
    repeat_s: float | None = None
    """For how long a request is repeated whose error is a passing one; None: as long as it may take in all."""
    max_record_bytes: int = 2**31
    isolation: Isolation = Isolation.READ_COMMITTED
    gather_bytes: int = 1
    """Once records have arrived, a broker is asked for so many bytes at a time. For readers without a deadline: each
    response costs the broker more than its content."""

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    def arguments(self) -> ClientArguments:
        return {
            "bootstrap_servers": self.servers,
            "client_id": self.client_id,
            "security_protocol": self.security.protocol,
            "ssl_context": self.ssl_context,
            "sasl_mechanism": self.security.mechanism,
            "sasl_plain_username": self.security.user,
            "sasl_plain_password": self.security.password,
        }


@dataclass(frozen=True, slots=True)
class GroupTiming:
    """How a consumer group notices the loss of a member, in milliseconds.

    A member that dies is missed after `session_timeout_ms`; a rebalance is noticed at the next heartbeat, and waits
    for `on_revoked` of each member up to `rebalance_timeout_ms`, which has to be below `request_timeout_ms`, and above
    the 5 s for requests in flight together with `commit_timeout_s`.
    """

    session_timeout_ms: int = 15_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 20_000
    request_timeout_ms: int = 30_000
    commit_timeout_s: float = 10.0
