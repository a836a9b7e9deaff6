"""
Real clients against a real Antiphon, with the packages as they are published.

A client that is a library has a driver, a program that plays scenarios by name and prints what its user would see; the
stories of `test_contract.py` and `test_failures.py` are played by all of them. A client that is a program, Codex or
opencode, is run as it is.

They need much to be installed, so they are collected only when asked for: `make test-clients`.
"""
