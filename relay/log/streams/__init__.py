"""The embedded log, on Redis Streams."""
