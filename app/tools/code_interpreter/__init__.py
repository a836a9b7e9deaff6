"""`code_interpreter` and `shell`: code and commands that the model writes, run in containers."""
