"""`code_interpreter` and `shell`: run code and commands written by the model in containers."""
