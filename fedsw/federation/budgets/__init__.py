"""What a client under local trust releases and how much noise it needs: settled from public numbers alone."""
