"""Private training on one machine: a plan, batches, bounded gradients, and a trainer over the same door as a run."""
