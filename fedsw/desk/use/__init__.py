"""From a finished run to decisions: the model with its columns, predictions, thresholds, exports."""
