"""Words, figures, screens and pages of runs: `facts` has each fact once, `document` shows them."""
