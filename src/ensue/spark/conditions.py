"""Failures of Spark code by name.

Spark shows an error from a Python worker as text. So each kind has a stable name in UPPER_SNAKE at
the front of it, to search for and to test against.
"""

from ensue.core.errors import BadInput

__all__ = ["SparkFault"]


class SparkFault(BadInput):
    """Something that a Spark job was given can't be used; `condition` names the kind."""

    def __init__(self, condition: str, message: str) -> None:
        # Both go to the base, so that the error survives pickling between worker and driver.
        super().__init__(condition, message)
        self.condition = condition
        self.message = message

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"
