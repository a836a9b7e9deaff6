"""
Programs that run inside a sandbox.

`supervisor.py` serves the server's requests, `archive.py` packs files, and `worker.py` runs the model's code. All are
copied into the sandbox and run by the Python under `/usr`, so they use only the standard library.
"""
