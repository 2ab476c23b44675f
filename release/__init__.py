"""Tools of the repository, not in its wheel: the reference pages, the list of licences, and the bill of materials."""
