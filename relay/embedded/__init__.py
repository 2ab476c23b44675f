"""The embedded engine: a private Valkey server as a child process."""
