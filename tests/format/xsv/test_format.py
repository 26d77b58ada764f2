from functools import partial
from typing import Any, ClassVar

from streaming.format import Sample
from streaming.format.xsv import CSVWriter, TSVWriter, XSVWriter
from tests.suites.format import FormatSuite


class TestCsv(FormatSuite):
    writer: ClassVar[Any] = CSVWriter
    columns: ClassVar = {"f": "float", "i": "int", "s": "str", "z": "str"}
    texts: ClassVar = ["", '"', 'a"b', "é\r", "\N{GRINNING FACE}", "\0", "\x85", "\u2028", "x" * 99]

    def samples(self) -> list[Sample]:
        return [
            {"f": (-1) ** i * i / 7, "i": (-3) ** (30 * i), "s": text, "z": text[::-1]}
            for i, text in enumerate(self.texts)
        ]


class TestTsv(TestCsv):
    writer: ClassVar[Any] = TSVWriter
    texts: ClassVar = ["", "a,b", '"', "nan", "1", " "]
    fuzz_rounds = 60


class TestCrLf(TestCsv):
    writer: ClassVar[Any] = staticmethod(partial(CSVWriter, newline="\r\n"))
    texts: ClassVar = ["", "a\nb", "\r", "\n", '"\n"', "x"]
    fuzz_rounds = 60


class TestSeparatorsOfMoreCharacters(TestCsv):
    writer: ClassVar[Any] = staticmethod(partial(XSVWriter, separator="||", newline=";\n"))
    texts: ClassVar = ["", "a,b", "\n", ";", "é", '"']
    fuzz_rounds = 60


class TestSeparatorsOutsideOfAscii(TestCsv):
    writer: ClassVar[Any] = staticmethod(
        partial(XSVWriter, separator="\N{RIGHTWARDS ARROW}", newline="¶")
    )
    texts: ClassVar = ["", "a,b", "\n", "\r\n", "é", '"']
    fuzz_rounds = 60


HOLDING = [*',;a,b;";"";"a";,";",; '.split(";"), "", "a\nb", "\n", "\r\n", "\r", "\x01\x02"]


class TestQuotedCsv(TestCsv):
    writer: ClassVar[Any] = staticmethod(partial(CSVWriter, quoting=True))
    texts: ClassVar = HOLDING
    fuzz_rounds = 200


class TestQuotedCrLf(TestCsv):
    writer: ClassVar[Any] = staticmethod(partial(CSVWriter, quoting=True, newline="\r\n"))
    texts: ClassVar = HOLDING
    fuzz_rounds = 60


class TestQuotedSeparatorsOfMoreCharacters(TestCsv):
    writer: ClassVar[Any] = staticmethod(
        partial(XSVWriter, quoting=True, separator="||", newline=";\n")
    )
    texts: ClassVar = [*HOLDING, "|", "a||b", "||", ";", "a|", "|b"]
    fuzz_rounds = 60


class TestQuotedSeparatorsOutsideOfAscii(TestCsv):
    writer: ClassVar[Any] = staticmethod(partial(XSVWriter, quoting=True, separator="→"))
    texts: ClassVar = [*HOLDING, "→", "a→b"]
    fuzz_rounds = 60


class TestOneColumnOfTexts(FormatSuite):
    """Three columns are what the suite needs; two of them are numbers that never need quotes."""

    writer: ClassVar[Any] = staticmethod(partial(TSVWriter, quoting=True))
    columns: ClassVar = {"a": "int", "b": "str", "c": "float"}
    fuzz_rounds = 20

    def samples(self) -> list[Sample]:
        numbers = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-7]
        return [{"a": i, "b": "", "c": number} for i, number in enumerate(numbers)]
