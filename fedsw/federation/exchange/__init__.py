"""Asking clients and reading what they answer: who takes part, who is available, what they have spent."""
