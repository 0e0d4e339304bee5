"""Malformed inputs: what each command line says and exits with, and that nothing was spent."""
