"""What every distributor must do. A subclass says how to make it."""

import json
import pickle
from typing import Any

from streaming.dataflow.base import Cursor, DataDistributor, StreamPlan, as_token, open_cursor

ONE = StreamPlan.of(1, 1)
SEVERAL = (StreamPlan.of(2, 3), StreamPlan(12, (2, 2)))


def value(item: Any) -> Any:
    """What tells items apart."""
    return item["i"] if isinstance(item, dict) else item


class DistributorSuite:
    """Inherit it, and give `make`: a distributor of the items 0 to `size` - 1 of one epoch."""

    size = 50
    is_whole = True  # Whether all streams together give each item once an epoch.
    plans: tuple[StreamPlan, ...] = (ONE, *SEVERAL)

    def make(self) -> DataDistributor:
        raise NotImplementedError

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        return open_cursor(self.make(), stream, plan)

    def test_the_streams_share_an_epoch(self) -> None:
        for plan in self.plans if self.is_whole else ():
            streams = [self.open(stream, plan) for stream in range(plan.num_streams)]
            items = sorted(value(item) for stream in streams for _, item in stream)
            assert items == list(range(self.size))

    def test_tokens_are_json_and_name_one_item(self) -> None:
        for plan in self.plans:
            tokens = [token for token, _ in self.open(plan.num_streams // 2, plan)]
            assert len(set(tokens)) == len(tokens) > 0
            assert [as_token(json.loads(json.dumps(token))) for token in tokens] == tokens

    def test_begun_again_at_any_item_the_rest_is_the_same(self) -> None:
        for plan in self.plans:
            stream = plan.num_streams - 1
            cursor = self.open(stream, plan)
            states, items = [json.dumps(cursor.state_dict())], []
            for token, item in cursor:
                items.append((token, value(item)))
                states.append(json.dumps(cursor.state_dict()))
            for place, state in enumerate(states[:-1]):
                again = self.open(stream, plan)
                again.load_state_dict(json.loads(state))
                assert [(token, value(item)) for token, item in again] == items[place:]

    def test_blocks_give_what_single_items_are(self) -> None:
        for plan in self.plans:
            single = [(token, value(item)) for token, item in self.open(0, plan)]
            cursor = self.open(0, plan)
            pairs: list[Any] = []
            while True:
                tokens, items = cursor.take(7)
                assert len(tokens) == len(items) <= 7
                pairs += zip(tokens, map(value, items), strict=True)
                if not items:
                    break
            assert pairs == single

    def test_an_item_can_be_had_again_by_its_token(self) -> None:
        for plan in self.plans:
            cursor = self.open(0, plan)
            for token, item in self.open(0, plan) if cursor.can_fetch else ():
                assert value(cursor.fetch(token)) == value(item)

    def test_after_the_end_the_next_epoch_begins(self) -> None:
        for plan in self.plans:
            cursor = self.open(0, plan)
            first = [value(item) for _, item in cursor]
            second = [value(item) for _, item in cursor]
            assert len(first) == len(second)
            if self.is_whole and plan == ONE:
                assert sorted(first) == sorted(second)

    def test_it_pickles(self) -> None:
        again = pickle.loads(pickle.dumps(self.make()))
        assert again.fingerprint() == self.make().fingerprint()
