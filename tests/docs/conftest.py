from tests.cli.conftest import understands, workplace

__all__ = ["understands", "workplace"]
