"""The log port and its implementations. The log holds all unfinished work."""
