"""A client's node: its records, its limits, its ledger, and how it computes and answers.

`held_records` reads and samples records; `node` runs the model and clips; `limits` are the operator's, and `own_ledger`
is what it keeps on its disk; `replies` joins a run and has the steps of every handler, which are their trust model's
(`fedsw.federation.trust`).
"""
