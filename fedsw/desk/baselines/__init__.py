"""Baselines of others: DP-SGD and DP-FedAvg with Opacus, PUFFLE's penalty; measured as fedsw's own runs are.

None of them is a trust model of fedsw: their noise and their accountants are Opacus', their neighbours differ in a
record that is there or not, and nothing here goes through fedsw's ledgers.
"""
