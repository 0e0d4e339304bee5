"""Attack a run's guarantee, and recompute it: lower bounds on its epsilon, and what contradicts it."""
