"""What an attack's outcome says about epsilon: bounds that hold at a stated confidence."""
