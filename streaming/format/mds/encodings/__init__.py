"""The encodings of MDS columns by name: ``int``, ``ndarray:float32:3,4``, ``list[str]``, ...

Another package adds its own by ``encodings.register(name, cls)``, by the entry-point group
``streaming.encodings``, or, as ever, by putting it into `_encodings`.
"""

from typing import Any

from streaming.errors import EncodingNameError, UnknownNameError
from streaming.format.mds.encodings.array import NDArray, Tensor
from streaming.format.mds.encodings.base import Encoding, decode_value, encode_value
from streaming.format.mds.encodings.container import JPEGList, List, Pickle, PILList, PNGList
from streaming.format.mds.encodings.image import JPEG, PIL, PNG, JPEGArray
from streaming.format.mds.encodings.scalar import (
    Bool,
    Date,
    DateTime,
    Float,
    Float16,
    Float32,
    Float64,
    Int,
    Int8,
    Int16,
    Int32,
    Int64,
    Number,
    Scalar,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from streaming.format.mds.encodings.text import (
    JSON,
    Bytes,
    Str,
    StrDecimal,
    StrEncoding,
    StrFloat,
    StrInt,
)
from streaming.util.importing import Registry

__all__ = [
    "JPEG",
    "JSON",
    "PIL",
    "PNG",
    "Bool",
    "Bytes",
    "Date",
    "DateTime",
    "Encoding",
    "Float",
    "Float16",
    "Float32",
    "Float64",
    "Int",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "JPEGArray",
    "JPEGList",
    "List",
    "NDArray",
    "Number",
    "PILList",
    "PNGList",
    "Pickle",
    "Scalar",
    "Str",
    "StrDecimal",
    "StrEncoding",
    "StrFloat",
    "StrInt",
    "Tensor",
    "Timestamp",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "encodings",
    "get_encoding",
    "get_mds_encoded_size",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_encode",
]

encodings: Registry[type[Encoding]] = Registry(
    "column encoding",
    {
        "bool": Bool,
        "bytes": Bytes,
        "date": Date,
        "datetime": DateTime,
        "float": Float,
        "float16": Float16,
        "float32": Float32,
        "float64": Float64,
        "int": Int,
        "int8": Int8,
        "int16": Int16,
        "int32": Int32,
        "int64": Int64,
        "jpeg": JPEG,
        "jpeg_array": JPEGArray,
        "jpegarray": JPEGArray,
        "json": JSON,
        "list[jpeg]": JPEGList,
        "list[pil]": PILList,
        "list[png]": PNGList,
        "ndarray": NDArray,
        "pil": PIL,
        "pkl": Pickle,
        "png": PNG,
        "str": Str,
        "str_decimal": StrDecimal,
        "str_float": StrFloat,
        "str_int": StrInt,
        "tensor": Tensor,
        "timestamp": Timestamp,
        "uint8": UInt8,
        "uint16": UInt16,
        "uint32": UInt32,
        "uint64": UInt64,
    },
    group="streaming.encodings",
)
_encodings = encodings.table

_MAX_DEPTH = 8  # of lists in lists; a name comes from outside


def get_encoding(name: str, depth: int = 0) -> Encoding:
    """Make the encoding of a name.

    Args:
        name: As it stands in a writer's `columns` or in an index.
        depth: Lists around it.

    Raises:
        EncodingNameError: There is no such encoding, or its parameters are wrong.
    """
    if name not in _encodings and name.startswith("list[") and name.endswith("]"):
        if depth == _MAX_DEPTH:
            raise EncodingNameError(f"Lists can be nested {_MAX_DEPTH} deep, not more.")
        return List(get_encoding(name[5:-1], depth + 1))
    kind, colon, parameters = name.partition(":")
    try:
        cls = encodings.get(kind)
    except UnknownNameError as error:
        raise EncodingNameError(f"{str(error).rstrip('.')}, list[...] of any of them.") from None
    if not colon:
        return cls()
    from_str = getattr(cls, "from_str", None)
    if from_str is None:
        raise EncodingNameError(f"The encoding {kind!r} takes no parameters, as in {name!r}.")
    made: Encoding = from_str(parameters)
    return made


def get_mds_encodings() -> set[str]:
    """The names of all encodings, without parameters; each may also be in a ``list[...]``."""
    return set(encodings)


def is_mds_encoding(encoding: str) -> bool:
    """Whether there is an encoding of this name."""
    try:
        get_encoding(encoding)
    except EncodingNameError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Whether decoding runs no code that the data choose. Unknown names decode nothing."""
    try:
        return bool(getattr(get_encoding(encoding), "safe", True))
    except EncodingNameError:
        return True


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Encode a value; `bytes` are taken to be encoded already.

    Raises:
        EncodingNameError: There is no such encoding.
        EncodeError: The value does not suit it.
    """
    return encode_value(get_encoding(encoding), obj)


def mds_decode(encoding: str, data: bytes) -> Any:
    """Decode a value. With an encoding that is not safe this runs code from the data.

    Raises:
        EncodingNameError: There is no such encoding.
        SampleError: The bytes are not those of a value.
    """
    return decode_value(get_encoding(encoding), data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Bytes of every value, or None if they differ.

    Raises:
        EncodingNameError: There is no such encoding.
    """
    return get_encoding(encoding).size
