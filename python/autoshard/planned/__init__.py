"""What a planned module says, and who writes it: the plan, its costs, its collectives."""
