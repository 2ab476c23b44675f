"""The overview of the relay: throughput of its stages, owners of its lanes, and what needs attention first."""
