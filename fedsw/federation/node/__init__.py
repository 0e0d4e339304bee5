"""What one client keeps and allows: its records, its limits, its ledger."""
