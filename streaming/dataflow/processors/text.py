"""Tokens of texts and of conversations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.dataflow.base import RawItem, RawItemProcessor, Sample
from streaming.errors import ConfigError, DataError

__all__ = ["ChatProcessor", "TextProcessor", "chatml"]

Ids = NDArray[np.int64]

# What speakers are called in ShareGPT-style records.
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}


class TextProcessor(RawItemProcessor):
    """Encodes a text of an item; the other keys stay.

    Args:
        tokenizer: What has `encode`, from a text to ids, or is a function that does this.
        key: Key of the text.
        out: Key of the ids, an int64 array.
        max_length: Longer texts are cut; None for no limit.
        size: What a sample will cost, told from the item: a function or a key; None if it can't be.
    """

    def __init__(
        self,
        tokenizer: Any,
        key: str = "text",
        out: str = "input_ids",
        *,
        max_length: int | None = None,
        size: Callable[[RawItem], float] | str | None = None,
    ) -> None:
        self.encode = _encoder(tokenizer)
        self.key = key
        self.out = out
        self.max_length = max_length
        self.size = _Column(size) if isinstance(size, str) else size

    def process(self, item: RawItem) -> Sample | None:
        ids = np.asarray(self.encode(item[self.key]), np.int64)[: self.max_length]
        return {**item, self.out: ids}


def chatml(role: str, text: str) -> tuple[str, str]:
    """How ChatML writes a turn: what stands before the words, and the words with their end."""
    return f"<|im_start|>{role}\n", f"{text}<|im_end|>\n"


class ChatProcessor(RawItemProcessor):
    """Makes training sequences of conversations, in which only some speakers are learned from.

    An item holds a list of turns, each with `role` and `content`, or `from` and `value`. The sample
    has `input_ids`, `labels` (the ids, and `ignore_index` for what is not learned), `token_mask`
    (what is learned) and `attention_mask` (all ones), int64 and bool arrays of one length; also
    `pad_token_id`, if it is known, and `ignore_index`. A conversation without anything to learn is
    dropped.

    Args:
        tokenizer: A tokenizer of Hugging Face with a chat template, or anything with `encode` from
            a text to ids.
        messages: Key of the list; None takes "messages" or "conversations".
        template: How a turn is written, if the tokenizer has no template: from role and text to two
            texts, of which the second is learned. The default is ChatML; the tokenizer should know
            its marks.
        learn: Roles that are learned from. A template of the tokenizer tells where the words of the
            assistant begin; of other roles the mark of the turn is learned as well.
        ignore_index: The label of what is not.
        max_length: Longer conversations are cut; None for no limit.
        size: What a sample will cost, told from the item: a function or a key; None if it can't be.
        keep: Keys of the item that the sample keeps.

    Raises:
        ConfigError: The tokenizer can't do either.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        messages: str | None = None,
        template: Callable[[str, str], tuple[str, str]] | None = None,
        learn: Sequence[str] = ("assistant",),
        ignore_index: int = -100,
        max_length: int | None = None,
        size: Callable[[RawItem], float] | str | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        has_template = callable(getattr(tokenizer, "apply_chat_template", None))
        self.tokenizer = tokenizer
        self.encode = None if has_template and template is None else _encoder(tokenizer)
        self.messages = messages
        self.template = template or chatml
        self.learn = frozenset(learn)
        self.ignore_index = ignore_index
        self.max_length = max_length
        self.size = _Column(size) if isinstance(size, str) else size
        self.keep = tuple(keep)
        pads = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
        self.pad_token_id = next((pad for pad in pads if pad is not None), None)

    def process(self, item: RawItem) -> Sample | None:
        turns = self._turns(item)
        ids, learned = self._write(turns) if self.encode else self._apply_template(turns)
        ids, learned = ids[: self.max_length], learned[: self.max_length]
        if not learned.any():
            return None
        sample = {key: item[key] for key in self.keep}
        sample["input_ids"] = ids
        sample["labels"] = np.where(learned, ids, self.ignore_index)
        sample["token_mask"] = learned
        sample["attention_mask"] = np.ones(len(ids), np.int64)
        sample["ignore_index"] = self.ignore_index
        if self.pad_token_id is not None:
            sample["pad_token_id"] = self.pad_token_id
        return sample

    def _turns(self, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The turns of an item, with `role` and `content`."""
        key = self.messages or next((k for k in ("messages", "conversations") if k in item), "")
        turns = item.get(key)
        if not isinstance(turns, Sequence) or isinstance(turns, str):
            raise DataError(
                f"A conversation must be a list of turns, under {key or 'messages'!r}, but is "
                f"{type(turns).__name__}; the item has {', '.join(map(str, item))}."
            )
        named = []
        for turn in turns:
            role, content = (
                turn.get("role", turn.get("from")),
                turn.get("content", turn.get("value")),
            )
            if role is None or content is None:
                raise DataError(
                    f"A turn needs `role` and `content`, or `from` and `value`, but has "
                    f"{', '.join(map(str, turn))}."
                )
            named.append({**turn, "role": _ROLES.get(role, role), "content": content})
        return named

    def _write(self, turns: list[dict[str, Any]]) -> tuple[Ids, NDArray[np.bool_]]:
        """Ids, and which are learned, turn by turn."""
        assert self.encode is not None
        ids: list[int] = []
        learned: list[bool] = []
        for turn in turns:
            for text, is_words in zip(
                self.template(turn["role"], _text(turn["content"])), (False, True), strict=True
            ):
                part = self.encode(text)
                ids += part
                learned += [is_words and turn["role"] in self.learn] * len(part)
        return np.array(ids, np.int64), np.array(learned, np.bool_)

    def _apply_template(self, turns: list[dict[str, Any]]) -> tuple[Ids, NDArray[np.bool_]]:
        """The same by the tokenizer's template: where a turn begins and ends, beginnings tell."""
        ids = self._ids(turns)
        learned = np.zeros(len(ids), np.bool_)
        for place, turn in enumerate(turns):
            if turn["role"] in self.learn:
                is_prompted = turn["role"] == "assistant"
                before = self._ids(turns[:place], prompt=is_prompted) if place else ids[:0]
                after = ids if place + 1 == len(turns) else self._ids(turns[: place + 1])
                for part in (before, after):
                    if not np.array_equal(part, ids[: len(part)]):
                        raise DataError(
                            f"The chat template of {type(self.tokenizer).__name__} writes the "
                            f"first {place + 1} turns differently when more follow, so it can't be "
                            f"told which tokens are theirs. Give a `template`."
                        )
                learned[len(before) : len(after)] = True
        return ids, learned

    def _ids(self, turns: list[dict[str, Any]], prompt: bool = False) -> Ids:
        found = self.tokenizer.apply_chat_template(
            turns, tokenize=True, add_generation_prompt=prompt
        )
        if isinstance(found, Mapping):
            found = found["input_ids"]
        return np.asarray(found, np.int64).reshape(-1)


class _Column:
    """Takes the cost of a sample from a key of its item."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, item: RawItem) -> float:
        cost: float = item[self.key]
        return cost


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """What encodes a text: a tokenizer's `encode`, or a function."""
    encode = getattr(tokenizer, "encode", tokenizer)
    if not callable(encode):
        raise ConfigError(
            f"A tokenizer needs `encode`, from a text to ids, or must be a function that does "
            f"this, but is {type(tokenizer).__name__}."
        )
    return _Encoder(encode)


class _Encoder:
    """Encodes a text as a list of numbers, without marks for its beginning and end."""

    def __init__(self, encode: Callable[..., Any]) -> None:
        self.encode = encode

    def __call__(self, text: str) -> list[int]:
        try:
            found = self.encode(text, add_special_tokens=False)
        except TypeError:
            found = self.encode(text)
        # The Rust tokenizers give an object that has the ids.
        return list(getattr(found, "ids", found))


def _text(content: Any) -> str:
    """The words of a turn, which may be given in parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
