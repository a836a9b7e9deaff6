"""The Python process: worker processes, threads, tasks, memory and connection errors."""
