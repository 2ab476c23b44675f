"""Why a cluster does not let us in: the library says only that it could not connect."""

import asyncio
from ssl import SSLCertVerificationError, SSLError
from typing import Final

from aiokafka.conn import AIOKafkaConnection, collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from relay.log.kafka.settings import KafkaCluster

_LOOK_S: Final = 5.0
_LOST: Final = (KafkaError, OSError, TimeoutError)
_LOGIN: Final = "RELAY_KAFKA_SASL_USERNAME and RELAY_KAFKA_SASL_PASSWORD"


async def refusal(cluster: KafkaCluster) -> str | None:
    """An error that no repeat cures, in a line: the credentials, or the security protocol, have to change. None if a
    broker accepts us, or none answers."""
    for host, port, _ in collect_hosts(cluster.servers):
        try:
            async with asyncio.timeout(_LOOK_S):
                connection = await _connected(cluster, host, port)
        except _LOST as error:
            if (why := _why(cluster, error)) is not None:
                return f"Kafka at {host}:{port}: {why}"
        else:
            connection.close()
            return None
    return None


async def _connected(cluster: KafkaCluster, host: str, port: int) -> AIOKafkaConnection:
    arguments = dict(cluster.arguments())
    del arguments["bootstrap_servers"]
    return await create_conn(host, port, **arguments, request_timeout_ms=round(_LOOK_S * 1000))


def _why(cluster: KafkaCluster, error: BaseException) -> str | None:
    match error:
        case SaslAuthenticationFailed() | AuthenticationFailedError():
            return f"it does not let user {cluster.security.user} in with this password; see {_LOGIN}"
        case UnsupportedSaslMechanismError():
            return f"it does not take {cluster.security.mechanism}; see RELAY_KAFKA_SASL_MECHANISM"
        case SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}; see RELAY_KAFKA_CA_FILE and the host's name"
        case SSLError():
            return (
                f"no TLS connection: {error.reason or error}; see RELAY_KAFKA_SECURITY_PROTOCOL, and"
                " RELAY_KAFKA_CERTIFICATE_FILE where it asks for a certificate of ours"
            )
    return _why(cluster, error.__cause__) if error.__cause__ is not None else None
