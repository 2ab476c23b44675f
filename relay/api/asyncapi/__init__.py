"""The AsyncAPI 3 document of the topics, for producers and consumers."""
