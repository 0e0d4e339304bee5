"""What not trusting the server costs: methods run side by side on one task, over budgets and seeds."""
