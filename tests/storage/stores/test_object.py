from collections.abc import Callable

import pytest

from streaming.storage import Store, open_store
from tests.servers.places import Opened
from tests.suites.store import StoreSuite


class TestStores(StoreSuite):
    @pytest.fixture
    def store(self, new_place: Callable[[], Opened]) -> Store:
        place = new_place()
        return open_store(place.url, place.options)[0]
