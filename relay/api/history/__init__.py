"""The routes of the history: the messages, attempts, payloads and counts that the caller may see."""
