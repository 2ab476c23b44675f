"""The records of `receiver_config`: receivers, sources, routes, holds, keys and replay jobs, with their readers and
writers."""
