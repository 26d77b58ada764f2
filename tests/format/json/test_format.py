from typing import Any, ClassVar

from streaming.format import Sample
from streaming.format.json import JSONLWriter, JSONWriter
from tests.suites.format import FormatSuite


class TestJson(FormatSuite):
    writer = JSONWriter
    columns: ClassVar = {"f": "float", "i": "int", "s": "str", "t": "str"}
    fuzz_rounds = 200

    def samples(self) -> list[Sample]:
        texts = ["", 'a"b', "é\n\r\n", "\N{GRINNING FACE}", "\0", "\\", "}\n{", "\ud800", "x" * 99]
        return [
            {"f": i / 7, "i": (-3) ** (30 * i), "s": text, "t": text[::-1]}
            for i, text in enumerate(texts)
        ]


class TestNumbersThatOnlyPythonReads(TestJson):
    fuzz_rounds = 60

    def samples(self) -> list[Sample]:
        numbers = [1.5, float("nan"), float("inf"), -float("inf"), 1e308, -0.0, 2.0]
        return [{"f": number, "i": i, "s": "", "t": "b"} for i, number in enumerate(numbers)]


class TestJsonl(TestJson):
    writer = JSONLWriter
    fuzz_rounds = 20


class TestCrLf(TestJson):
    fuzz_rounds = 60

    def write(self, *args: Any, **options: Any) -> Any:
        return super().write(*args, newline="\r\n", **options)


class TestNewlineOfMoreCharacters(TestJson):
    fuzz_rounds = 60

    def write(self, *args: Any, **options: Any) -> Any:
        return super().write(*args, newline=";\N{PILCROW SIGN}\n", **options)


class TestOurTypes(FormatSuite):
    writer = JSONWriter
    columns: ClassVar = {"b": "bool", "j": "json", "s": "str"}
    fuzz_rounds = 60

    def samples(self) -> list[Sample]:
        values: list[Any] = [None, [], {"a": {"é": [1, 2.5, None, True]}}, 7**50, "x", [[[]]], {}]
        return [{"b": i % 2 == 0, "j": value, "s": "s" * i} for i, value in enumerate(values)]
