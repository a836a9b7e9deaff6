from tests.support.upstream import upstream

__all__ = ["upstream"]
