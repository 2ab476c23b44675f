"""The five workers, one step each."""
