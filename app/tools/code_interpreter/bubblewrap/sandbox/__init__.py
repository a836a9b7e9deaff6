"""
Programs that run inside a sandbox: `supervisor.py`, which serves the server's requests, `archive.py`, with which it
packs files, and `worker.py`, which runs the model's code.

All are copied into the sandbox and run by the Python under `/usr`, so they use only the standard library.
"""
