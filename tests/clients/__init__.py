"""
Real clients against a real Antiphon: each in a directory of its own, with the package as it is published.

They need npm, so they are collected only when asked for: `make test-clients`, or `pytest tests/clients` once the
packages are installed by `npm ci` in this directory.
"""
