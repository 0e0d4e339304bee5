"""Digits of clients that each train privately."""
