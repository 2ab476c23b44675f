"""What is on the topics, for those who write or read them: AsyncAPI 3."""
