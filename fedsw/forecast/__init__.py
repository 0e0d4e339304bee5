"""What a run on private records can be expected to come to, from public numbers alone: trained on public twins."""
