"""Trust models `sketch` and `sketch-local`: one sum over all records leaves, once; a generator learns from it."""
