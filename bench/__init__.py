"""The benchmark: real servers, a real relay, load at a fixed arrival rate, and a receiver that counts every message."""
