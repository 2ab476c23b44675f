"""A whole relay at the size it is designed for, in virtual time."""
