"""Datasets of text as the predecessor's examples have them: C4, The Pile, English Wikipedia.

Their old modules (`streaming.text.c4`, ...) are this one.
"""

from typing import Any

import numpy as np

from streaming.errors import ConfigError
from streaming.example import ExampleDataset
from streaming.format.reader import Sample
from streaming.util.importing import lazy
from streaming.util.migration import alias_submodules, extends

__all__ = ["StreamingC4", "StreamingEnWiki", "StreamingPile"]

__path__ = alias_submodules(
    __name__,
    dict.fromkeys(("c4", "enwiki", "pile"), __name__),
    gone={
        "convert": "write a dataset with `MDSWriter`, or have a JSONL file converted by "
        "`streaming convert`; see docs/migrating.md."
    },
)


class StreamingC4(ExampleDataset):
    """C4: texts (column "text"), tokenized when they are read.

    Args:
        arguments: As for ExampleDataset.
        tokenizer_name: Name or path of a tokenizer, for Hugging Face's AutoTokenizer.
        max_seq_len: Tokens of each sample: longer ones are cut, shorter ones padded.
        group_method: "truncate", the only way there is.

    Raises:
        ConfigError: `group_method` is something else.
        MissingExtraError: transformers is not installed.
    """

    @extends(ExampleDataset)
    def __init__(
        self,
        *,
        tokenizer_name: str,
        max_seq_len: int,
        group_method: str,
        **arguments: Any,
    ) -> None:
        if group_method != "truncate":
            raise ConfigError(f"`group_method` must be 'truncate', but is {group_method!r}.")
        super().__init__(**arguments)
        self.tokenizer = lazy("transformers", "transformers").AutoTokenizer.from_pretrained(
            tokenizer_name
        )
        if self.tokenizer.pad_token is None:
            # Some tokenizers (GPT-2's) have none.
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.max_seq_len = max_seq_len
        self.group_method = group_method

    def get_item(self, idx: int, retry: int = 7) -> Any:
        """Get the tokens of one text, as the tokenizer gives them."""
        sample = super().get_item(idx, retry)
        return self.tokenizer(
            sample["text"], truncation=True, padding="max_length", max_length=self.max_seq_len
        )


class StreamingPile(StreamingC4):
    """The Pile; as StreamingC4."""


class StreamingEnWiki(ExampleDataset):
    """English Wikipedia in pieces for BERT, with tokens masked when it was written.

    Columns "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids",
    "masked_lm_weights", "next_sentence_labels": bytes of int32, but for the weights (float32).
    The constructor is that of ExampleDataset.
    """

    def get_item(self, idx: int, retry: int = 7) -> Sample:
        """Get input_ids, token_type_ids, attention_mask and labels of one piece.

        Labels are -100 but where a token was masked.

        Raises:
            KeyError: There is a column that this dataset does not have.
        """
        arrays = {
            name: np.frombuffer(data, _ENWIKI[name]).copy()
            for name, data in super().get_item(idx, retry).items()
        }
        labels = np.full(len(arrays["input_ids"]), -100, np.int64)
        labels[arrays["masked_lm_positions"]] = arrays["masked_lm_ids"]
        return {
            "input_ids": arrays["input_ids"],
            "token_type_ids": arrays["segment_ids"],
            "attention_mask": arrays["input_mask"],
            "labels": labels,
        }


_ENWIKI = {
    "input_ids": np.int32,
    "input_mask": np.int32,
    "segment_ids": np.int32,
    "masked_lm_positions": np.int32,
    "masked_lm_ids": np.int32,
    "masked_lm_weights": np.float32,
    "next_sentence_labels": np.int32,
}
