"""The toy order, registered."""

from collections.abc import Iterator

import pytest
from tests.orders.toy import BatchOrder

from ensue import orders


@pytest.fixture
def toy() -> Iterator[BatchOrder]:
    order = BatchOrder()
    orders.register(order)
    yield order
    orders.unregister(order.name)
