"""The live tail: events, streamed to connected listeners."""
