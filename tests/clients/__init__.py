"""
Published client packages with a real Antiphon.

Libraries have a driver: a program that plays scenarios by name and prints its user's view. All of them play the stories
in `test_contract.py` and `test_failures.py`. Programs, such as Codex or opencode, run unchanged.

They need many packages, so they are collected only for `make test-clients`.
"""
