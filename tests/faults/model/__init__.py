"""An explicit-state model of the relay: every interleaving of its steps with crashes, lost words and zombies."""
