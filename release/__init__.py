"""What is made for a release beside its wheel: the list of licences, and the bill of materials."""
