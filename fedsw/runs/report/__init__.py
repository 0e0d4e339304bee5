"""Tables, plots and screens made of finished and running runs."""
