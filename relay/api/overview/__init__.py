"""How the relay is as a whole: what flows through its stages, who serves its lanes, and what needs somebody first."""
