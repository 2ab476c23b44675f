"""Three brokers that replicate to one another, for tests in which one of them fails."""

from bench.kafka_parts import free_ports, new_cluster_id
from tests.servers.kafka import KafkaBroker

_MEMBER = """
node.id={node}
controller.quorum.bootstrap.servers=
controller.quorum.voters={voters}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
replica.lag.time.max.ms=5000
controller.quorum.election.timeout.ms=500
controller.quorum.fetch.timeout.ms=1000
"""


class KafkaCluster:
    """Three brokers that are also the controllers. `nodes`: each can be started, killed and frozen alone."""

    def __init__(self, size: int = 3) -> None:
        ports = free_ports(2 * size)
        pairs = list(zip(ports[::2], ports[1::2], strict=True))
        voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in enumerate(pairs, start=1))
        fresh = ("-t", new_cluster_id())
        self.nodes = [
            KafkaBroker(_MEMBER.format(node=node, voters=voters), ports=pair, fresh=fresh)
            for node, pair in enumerate(pairs, start=1)
        ]

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, comma-separated."""
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_answer()

    def stop(self) -> None:
        """Stop all brokers, and delete their data."""
        for node in self.nodes:
            node.thaw()
            node.stop()
