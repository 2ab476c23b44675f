"""The reference of docs/reference/, and the command that writes it."""
