"""
What runs inside a sandbox: `supervisor.py`, which the server talks to, and `worker.py`, the Python of the model's code.

Both are copied into the sandbox as files and run by the Python of `/usr`, so they use the standard library alone.
"""
