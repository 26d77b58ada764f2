"""Tokens of texts and conversations."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from streaming.dataflow import ChatProcessor, TextProcessor
from streaming.errors import ConfigError, DataError

CHAT = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "hi there"},
]


class Letters:
    """A tokenizer of letters, that would put a mark in front if it were not told not to."""

    eos_token_id = 3

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]


class Templated(Letters):
    """With a chat template, as Hugging Face's have."""

    pad_token_id = 0
    boxed = False

    def apply_chat_template(
        self, turns: list[dict[str, Any]], tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        text = "".join(f"[{turn['role'][0]}]{turn['content']}." for turn in turns)
        ids = self.encode(text + "[a]" * add_generation_prompt, add_special_tokens=False)
        return {"input_ids": [ids]} if self.boxed else ids


class Boxed(Templated):
    boxed = True


class Summing(Templated):
    """A template whose beginning depends on the end."""

    def apply_chat_template(
        self, turns: list[dict[str, Any]], tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        ids = super().apply_chat_template(turns, tokenize, add_generation_prompt)
        return [len(turns), *ids]


def text(ids: np.ndarray[Any, Any]) -> str:
    return "".join(map(chr, ids))


def learned(sample: Mapping[str, Any]) -> str:
    mask = sample["token_mask"]
    assert np.array_equal(sample["labels"] != -100, mask)
    assert np.array_equal(sample["labels"][mask], sample["input_ids"][mask])
    return text(sample["labels"][mask])


def test_the_words_of_the_assistant_are_learned() -> None:
    sample = ChatProcessor(Letters()).process({"messages": CHAT})
    assert sample is not None
    assert text(sample["input_ids"]).startswith("<|im_start|>system\nbe kind<|im_end|>\n")
    assert learned(sample) == "hi<|im_end|>\nhi there<|im_end|>\n"
    assert sample["input_ids"].dtype == sample["labels"].dtype == np.int64
    assert sample["attention_mask"].tolist() == [1] * len(sample["input_ids"])
    assert (sample["pad_token_id"], sample["ignore_index"]) == (3, -100)


@pytest.mark.parametrize("tokenizer", [Templated(), Boxed()], ids=["list", "dict"])
def test_a_template_of_the_tokenizer_is_used(tokenizer: Any) -> None:
    sample = ChatProcessor(tokenizer).process({"messages": CHAT})
    assert sample is not None
    assert text(sample["input_ids"]) == "[s]be kind.[u]hello.[a]hi.[u]again.[a]hi there."
    assert learned(sample) == "hi.hi there."
    assert sample["pad_token_id"] == 0


def test_a_template_whose_beginnings_change_is_an_error() -> None:
    with pytest.raises(DataError, match="template of Summing"):
        ChatProcessor(Summing()).process({"messages": CHAT})


def test_a_template_of_the_user_goes_before_the_tokenizer_s() -> None:
    processor = ChatProcessor(Templated(), template=lambda role, words: (f"{role}:", f"{words};"))
    sample = processor.process({"messages": CHAT[:3]})
    assert sample is not None
    assert text(sample["input_ids"]) == "system:be kind;user:hello;assistant:hi;"


def test_sharegpt_records_and_parts_of_content_are_read() -> None:
    record = {
        "conversations": [
            {"from": "human", "value": [{"type": "text", "text": "a"}, {"type": "image"}]},
            {"from": "gpt", "value": "b"},
        ],
        "id": 5,
        "other": 6,
    }
    sample = ChatProcessor(
        Letters(), template=lambda role, words: (f"{role}:", f"{words};"), keep=["id"]
    ).process(record)
    assert sample is not None
    assert text(sample["input_ids"]) == "user:a;assistant:b;"
    assert sample["id"] == 5
    assert "other" not in sample


def test_other_roles_may_be_learned() -> None:
    sample = ChatProcessor(Templated(), learn=["user", "assistant"]).process({"messages": CHAT})
    assert sample is not None
    assert "hello." in learned(sample)


def test_long_conversations_are_cut_and_those_with_nothing_to_learn_dropped() -> None:
    sample = ChatProcessor(Templated(), max_length=27).process({"messages": CHAT})
    assert sample is not None
    assert len(sample["input_ids"]) == 27
    assert learned(sample) == "hi."
    assert ChatProcessor(Templated(), max_length=5).process({"messages": CHAT}) is None
    assert ChatProcessor(Templated()).process({"messages": CHAT[:2]}) is None


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"messages": "hello"}, "must be a list of turns, under 'messages', but is str"),
        ({"text": 1}, "the item has text"),
        ({"messages": [{"role": "user"}]}, "needs `role` and `content`"),
    ],
    ids=["text", "none", "turn"],
)
def test_what_is_no_conversation_is_an_error(item: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ChatProcessor(Letters()).process(item)


def test_a_text_is_encoded_beside_the_rest() -> None:
    processor = TextProcessor(Letters(), "caption", "text_token_ids", max_length=2)
    sample = processor.process({"caption": "abc", "i": 1})
    assert sample is not None
    assert sample["text_token_ids"].tolist() == [97, 98]
    assert (sample["caption"], sample["i"]) == ("abc", 1)
    assert processor.size is None


def test_a_function_and_a_rust_tokenizer_will_do() -> None:
    class Encoding:
        ids = (7, 8)

    class Rust:
        def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
            return Encoding()

    assert TextProcessor(lambda text: range(len(text))).encode("abc") == [0, 1, 2]
    sample = TextProcessor(Rust()).process({"text": "x"})
    assert sample is not None
    assert sample["input_ids"].tolist() == [7, 8]
    with pytest.raises(ConfigError, match="needs `encode`"):
        TextProcessor(5)


def test_a_size_may_be_a_column() -> None:
    processor = ChatProcessor(Letters(), size="num_tokens")
    assert processor.size is not None
    assert processor.size({"num_tokens": 9}) == 9
    assert TextProcessor(Letters(), size=lambda item: 4).size({}) == 4  # type: ignore[misc]
