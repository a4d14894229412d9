"""Named failures of Spark jobs.

Spark reports an error of a Python worker as text. So each kind starts with a stable UPPER_SNAKE
name that users can search for and tests can match.
"""

from ensue.core.errors import BadInput

__all__ = ["SparkFault"]


class SparkFault(BadInput):
    """Invalid input of a Spark job; `condition` names the kind."""

    def __init__(self, condition: str, message: str) -> None:
        # The base gets both, so that the error survives pickling between worker and driver.
        super().__init__(condition, message)
        self.condition = condition
        self.message = message

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"
