"""The routes of the history: messages, attempts, payloads and counts, as far as their caller may see them."""
