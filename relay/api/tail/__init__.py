"""The live tail: what happens, told to those who listen while they listen."""
