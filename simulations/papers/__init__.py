"""The figures and tables of the papers: what runs for each, what is measured, and how it is drawn."""
