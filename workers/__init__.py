"""The five workers, one step each, and the history's worker."""
