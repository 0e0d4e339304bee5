"""What attacks and recomputation show of a run's guarantee: lower bounds on its epsilon, and what contradicts it."""
