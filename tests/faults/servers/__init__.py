"""Crashes and outages of real servers and processes: Kafka, Redis and the relay are killed, paused and emptied."""
