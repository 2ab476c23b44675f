"""The HTTP API: where senders post messages and receivers post answers."""
