"""The searchable history: derived from the log, never awaited by deliveries, and rebuilt from the log if lost."""
