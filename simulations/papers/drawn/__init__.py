"""How figures are drawn from their results: one file a kind of picture."""
