"""A client's node: its records, its limits, its ledger, and how it computes and answers."""
