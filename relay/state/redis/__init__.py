"""The state on Redis or Valkey."""
