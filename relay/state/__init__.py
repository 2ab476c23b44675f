"""The state: indexes and hints outside the log, which may be lost. Has the port and its implementations."""
