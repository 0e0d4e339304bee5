"""A client's node: its records, its limits, its ledger, and how it computes and answers.

`joining` reads the records, once a process, by `held_records`; `node` draws, runs the model and clips; `limits` are the
operator's; `replies` has the steps of every handler. Handlers are their trust model's (`fedsw.federation.trust`).
"""
