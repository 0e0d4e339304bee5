"""A run that is broken on purpose, again and again, and must end with an account that is right to the last digit."""
