"""A private PostgreSQL server of a test. If it is not installed, the test is skipped, but fails when CI is `true`."""

from bench.kafka_parts import Unsuitable
from bench.postgres import Postgres
from tests.servers.kafka import unavailable


class PostgresServer(Postgres):
    """See Postgres."""

    def __init__(self, *, durable: bool = False, options: tuple[str, ...] = ()) -> None:
        try:
            super().__init__(durable=durable, options=options)
        except Unsuitable as error:
            unavailable(str(error))
