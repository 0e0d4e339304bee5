"""Could a run be worth its epsilon: forecasts from public twins, settings searched on them, private selection."""
