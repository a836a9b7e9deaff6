from tests.upstream import upstream

__all__ = ["upstream"]
