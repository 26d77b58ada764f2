"""A DataLoader that knows how far the run has come, and goes on from there."""

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from streaming.dataset import Handoff, StreamingDataset
from streaming.errors import ConfigError, DataError
from streaming.foreign import refuse_preparation
from streaming.format.column import Pieces, Stack
from streaming.iteration import StackedBatch, Stacks
from streaming.shared.epoch import Start

__all__ = ["StreamingDataLoader"]

logger = logging.getLogger(__name__)

# Up to here an array is sent from a worker with the rest of its batch.
MAX_SENT_BYTES = 1 << 20

# What torch's collate raises for values that it can't put together.
_REFUSALS = (TypeError, ValueError, RuntimeError, KeyError)
_MAX_KINDS = 4  # that an error lists of one column


class StreamingDataLoader(DataLoader[Any]):
    """torch's DataLoader over a StreamingDataset, with `state_dict` and `load_state_dict`.

    Takes torch's arguments. The state counts the samples of batches that were given out, not what
    workers have read ahead; saving it asks no worker. Works with any other dataset too, then
    without a state.

    Attributes:
        num_samples_yielded: Samples in the batches given out in this iteration, on this rank.
    """

    _is_stacking = False

    def __init__(self, dataset: Dataset[Any], *args: Any, **kwargs: Any) -> None:
        if getattr(dataset, "batched", False):
            # torch's way of saying that the dataset makes the batches.
            batch_size = args[0] if args else kwargs.setdefault("batch_size", None)
            if batch_size is not None:
                raise ConfigError(
                    "The dataset gives whole batches (batched=True, batch_size=...). Leave out the "
                    "loader's `batch_size`, or pass None."
                )
            if len(args) <= 5:  # Torch takes it as the sixth, too.
                kwargs["collate_fn"] = kwargs.get("collate_fn") or _to_tensors
        elif getattr(dataset, "gives_lists", False):
            args = _without_batch_size(args, kwargs, dataset)
        super().__init__(dataset, *args, **kwargs)
        self.num_samples_yielded = 0
        self._num_batches_yielded = 0
        self._start: Start | None = None
        self._key = uuid.uuid4().hex
        self._warn_of_batch_size()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class.
        """Begin the next epoch, or go on where a loaded state says."""
        self.num_samples_yielded = self._num_batches_yielded = 0
        dataset = self.dataset
        if not isinstance(dataset, StreamingDataset):
            return self._count(self._make_iterator())
        self._start = dataset.begin_epoch(self._is_over)
        if self.drop_last and self._is_over(self._start):
            logger.warning(
                "drop_last leaves no batch of this epoch: no worker has %d samples of it. Use "
                "fewer workers or ranks, smaller batches, or keep the last batch.",
                self.batch_size,
            )
        stacks = self._stacks(dataset)
        with dataset.handing_over(Handoff(self._start, self._key, self.persistent_workers, stacks)):
            batches = self._make_iterator(stacks)
        return self._count(batches)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, also where it goes on within one.

        All ranks have equally many. The epoch is the one that was begun last, or the next.
        """
        dataset = self.dataset
        if not (
            isinstance(dataset, StreamingDataset)
            and dataset.batch_size is not None
            and dataset.has_own_iteration
            and type(dataset).__len__ is StreamingDataset.__len__
        ):
            return super().__len__()
        start = msgspec.structs.replace(self._start or dataset.next_start, seen=0)
        size = self.batch_size or (dataset.batch_size if self._is_given_batches else 1)
        return dataset.num_batches(start, self.num_workers, size, drop_last=self.drop_last)

    def state_dict(self) -> dict[str, Any] | None:
        """The place in the run after the last batch that was given out; None if it has none.

        Equal on all ranks if they have given out equally many batches.
        """
        dataset = self.dataset
        if not isinstance(dataset, StreamingDataset):
            return None
        start = self._start
        if start is not None and self._has_rows:
            seen = dataset.seen_after(start, self._num_batches_yielded) - start.seen
        else:
            seen = dataset.to_global(self.num_samples_yielded)
        is_overridden = type(dataset).state_dict is not StreamingDataset.state_dict
        if start is None or is_overridden:
            return dataset.state_dict(seen, from_beginning=False)
        return dataset.state_at(start, start.seen + seen)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Go on from a state at the next iteration; see `StreamingDataset.load_state_dict`."""
        dataset = self.dataset
        if isinstance(dataset, StreamingDataset):
            dataset.load_state_dict(obj)
            self._start = None
            self.num_samples_yielded = self._num_batches_yielded = 0

    def _warn_of_batch_size(self) -> None:
        """Say so if batches are cut from what a dataset has planned with others."""
        dataset, size = self.dataset, self.batch_size
        if not isinstance(dataset, StreamingDataset) or dataset.batch_size in (None, size):
            return
        if size is None or (self.num_workers < 2 and dataset.batching_method == "random"):
            return  # Samples come in the planned order, however many at a time.
        logger.warning(
            "The loader's batch_size is %d, but the dataset's %d, by which samples are dealt out "
            "to workers and to batches: they come in another order than planned, and a state that "
            "is saved within an epoch loses some of them and repeats others. Give both the same.",
            size,
            dataset.batch_size,
        )

    def _is_over(self, start: Start) -> bool:
        """Whether no batch is left. A last short one does not count where it is dropped."""
        dataset = self.dataset
        assert isinstance(dataset, StreamingDataset)
        size = self.batch_size or 1
        if self._has_rows:
            size = self.batch_size or dataset.batch_size or 1
            left = dataset.num_batches(start, self.num_workers, size, drop_last=self.drop_last)
            return left == 0
        return dataset.is_over(start, self.num_workers, size if self.drop_last else 1)

    @property
    def _is_given_batches(self) -> bool:
        """Whether the dataset makes the batches, whoever reads it."""
        dataset = self.dataset
        return isinstance(dataset, StreamingDataset) and (dataset.batched or dataset.gives_lists)

    @property
    def _has_rows(self) -> bool:
        """Whether each batch is one of the dataset's plan."""
        dataset = self.dataset
        if not isinstance(dataset, StreamingDataset):
            return False
        is_whole = self._is_given_batches or self.batch_size == dataset.batch_size
        return dataset.gives_lists or (dataset.gives_rows and is_whole)

    def _stacks(self, dataset: StreamingDataset) -> Stacks | None:
        """In what form the dataset is to give batches; None: samples, or what it gives anyway."""
        can_stack, has_rows = self._can_stack(dataset), self._has_rows
        if not can_stack and (not has_rows or self._is_given_batches):
            return None
        return Stacks(self.batch_size or 1, self.drop_last, has_rows, not can_stack)

    def _can_stack(self, dataset: StreamingDataset) -> bool:
        """Whether all that is to be done with samples is what torch does by itself."""
        is_default = self.collate_fn is default_collate and all(
            function.__module__ == default_collate.__module__
            for function in default_collate_fn_map.values()
        )
        return is_default and self.batch_size is not None and dataset.can_stack

    @property
    def _auto_collation(self) -> bool:
        # What torch asks to know whether its iterators are to gather samples for a batch.
        return super()._auto_collation and not self._is_stacking

    def _make_iterator(self, stacks: Stacks | None = None) -> Iterator[Any]:
        """Torch's iterator, whose workers say of how many samples each batch is."""
        gives_lists = getattr(self.dataset, "gives_lists", False)
        is_stacking = stacks is not None and not stacks.is_listed
        is_columns = getattr(self.dataset, "batched", False)
        own = self.collate_fn
        collate = _collate if own is default_collate else own
        is_batch = gives_lists or self.batch_sampler is not None
        self.collate_fn = (
            _collate_stacks if is_stacking else _Counting(collate, is_batch, is_columns)
        )
        self._is_stacking = stacks is not None
        try:
            return super().__iter__()
        finally:
            self.collate_fn, self._is_stacking = own, False

    def _count(self, batches: Iterator[Any]) -> Iterator[Any]:
        asks = type(self)._get_batch_size is not StreamingDataLoader._get_batch_size
        for num_samples, batch in batches:
            self.num_samples_yielded += self._get_batch_size(batch) if asks else num_samples
            self._num_batches_yielded += 1
            yield batch

    def _get_batch_size(self, batch: Any) -> int:
        """Samples in a collated batch, by its form. For subclasses that know better to override.

        Nothing here asks it: samples are counted before they are collated.

        Raises:
            DataError: It can't be told.
        """
        return _num_samples(batch)

    @property
    def _is_accelerate_prepared(self) -> bool:
        # What Accelerate asks of a loader that it is to prepare, and the only thing that it does
        # before it takes the loader apart.
        dataset = self.dataset
        if isinstance(dataset, StreamingDataset):
            refuse_preparation(dataset.parallel_world)
        return False


def _without_batch_size(
    args: tuple[Any, ...], kwargs: dict[str, Any], dataset: Any
) -> tuple[Any, ...]:
    """Torch's arguments for a dataset that gives lists of samples, one for each batch.

    Raises:
        ConfigError: A batch size is given that isn't the dataset's.
    """
    batch_size = args[0] if args else kwargs.pop("batch_size", None)
    if batch_size not in (None, dataset.batch_size):
        raise ConfigError(
            f"Streams of the dataset have batch sizes of their own; the loader's `batch_size` must "
            f"be the dataset's ({dataset.batch_size}) or left out, but is {batch_size}."
        )
    if len(args) <= 5:  # Torch takes it as the sixth, too.
        kwargs["collate_fn"] = kwargs.get("collate_fn") or default_collate
    return (None, *args[1:])


class _Counted(NamedTuple):
    """A batch on its way from a worker. Of a named tuple, torch pins the members."""

    num_samples: int
    batch: Any


@dataclass(frozen=True, slots=True)
class _Counting:
    """Collates, and counts before: what comes out need not tell of how many samples it is.

    Attributes:
        collate: What the user collates with.
        is_batch: Whether it is given lists of samples, and not each by itself.
        is_columns: Whether what it is given is a batch already, as a dict of columns.
    """

    collate: Callable[[Any], Any]
    is_batch: bool
    is_columns: bool

    def __call__(self, samples: Any) -> _Counted:
        if self.is_columns:
            num_samples = len(next(iter(samples.values()), ()))
        else:
            num_samples = len(samples) if self.is_batch else 1
        try:
            return _Counted(num_samples, self.collate(samples))
        except _REFUSALS as error:
            if self.is_batch and not self.is_columns and self.collate is not _collate:
                _note_faults(error, samples)
            raise


def _collate_stacks(batch: StackedBatch) -> _Counted:
    """What torch's default collate makes of these samples."""
    if batch.columns is None:
        return _Counted(batch.size, _collate(batch.samples))
    try:
        collated = {name: _collate_stack(stack) for name, stack in batch.columns.items()}
    except _REFUSALS as error:
        columns = {name: _values(stack) for name, stack in batch.columns.items()}
        faults = [fault for name, values in columns.items() for fault in _faults(name, values)]
        _refuse(error, faults)
    return _Counted(batch.size, collated)


def _collate_stack(stack: Stack) -> Any:
    """One column of a batch, in memory of its own."""
    if isinstance(stack, list):
        return default_collate(stack)
    if get_worker_info() is not None:
        return _sent(stack.to_array() if isinstance(stack, Pieces) else stack)
    return from_numpy(stack.to_array() if isinstance(stack, Pieces) else stack.copy())


def _sent(array: NDArray[Any]) -> Any:
    """What a worker puts into a batch so that a tensor of this array comes out of torch's queue."""
    if array.nbytes > MAX_SENT_BYTES:
        return from_numpy(array)  # Pickling it moves a copy to shared memory.
    return _Sent(array.tobytes(), array.dtype.str, array.shape)


class _Sent(NamedTuple):
    """An array on its way, which arrives as a tensor.

    Torch sends a tensor as a file descriptor, for which the other side has to connect and to
    authenticate itself: that takes longer than sending up to a megabyte along with the rest.
    """

    data: bytes
    dtype: str
    shape: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, tuple(self)


def _receive(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return from_numpy(np.frombuffer(data, dtype).reshape(shape).copy())


def _collate(samples: Any) -> Any:
    """What torch's default collate makes of samples; its error says which column is at fault."""
    try:
        return default_collate(samples)
    except _REFUSALS as error:
        _refuse(error, list(_faults("", samples)))


def _note_faults(error: Exception, samples: Sequence[Any]) -> None:
    """Add which columns are at fault to an error that a user's function has of torch's collate."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is default_collate.__code__:
            faults = "; ".join(_faults("", samples))
            if faults:
                error.add_note(
                    f"The samples, as your `collate_fn` got them, are not what torch's default "
                    f"collate expects, numbers, texts or arrays of one type and shape: {faults}."
                )
            return
        traceback = traceback.tb_next


def _refuse(error: Exception, faults: Sequence[str]) -> NoReturn:
    """Raise an error of torch's collate again, with what it refused in words if that is known."""
    if not faults or type(error) not in _REFUSALS:
        raise error
    reason = str(error).rstrip(".")
    raise type(error)(
        f"Torch's default collate expects numbers, texts or arrays, of one type and shape; found "
        f"{'; '.join(faults)} (torch: {reason}). Leave such columns out with the dataset's "
        f"`columns=`, give the loader a `collate_fn`, or fill them in in a `get_item` of yours."
    ) from error


def _faults(name: str, values: Sequence[Any]) -> Iterator[str]:
    """What torch's collate refuses in the values of a column; "": in samples as a whole."""
    if not _is_refused(values):
        return
    first = values[0]
    faults: list[str] = []
    if all(isinstance(value, Mapping) for value in values):
        for key in first:
            inner = f"{name}.{key}" if name else str(key)
            there = [value[key] for value in values if key in value]
            if len(there) < len(values):
                missing = len(values) - len(there)
                faults.append(f"`{inner}` (missing in {missing} of {len(values)} samples)")
            else:
                faults += _faults(inner, there)
    elif all(isinstance(value, list | tuple) and len(value) == len(first) for value in values):
        for place, members in enumerate(zip(*values, strict=True)):
            faults += _faults(f"{name}[{place}]", members)
            if faults:
                break  # The other places will be like this one.
    yield from faults or [f"`{name}` ({_kinds(values)})" if name else _kinds(values)]


def _is_refused(values: Sequence[Any]) -> bool:
    try:
        default_collate(list(values))
    except _REFUSALS:
        return True
    return False


def _kinds(values: Sequence[Any]) -> str:
    """Of what types and shapes some values are, the most frequent ones first."""
    kinds = Counter(map(_kind, values)).most_common()
    words = [f"{kind} in {count}" for kind, count in kinds[:_MAX_KINDS]]
    more = [f"{len(kinds) - _MAX_KINDS} more kinds"] if len(kinds) > _MAX_KINDS else []
    return f"{', '.join([*words, *more])} of {len(values)} samples"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray | Tensor):
        return f"{value.dtype} array of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of length {len(value)}"
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def _values(stack: Stack) -> list[Any]:
    return list(stack.to_array() if isinstance(stack, Pieces) else stack)


def _num_samples(batch: Any) -> int:
    """Samples in a collated batch, whatever its form.

    Raises:
        DataError: It can't be told.
    """
    first = batch
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        keys = list(batch.keys())
        if not keys:
            raise DataError("A batch is an empty dict, so its samples can't be counted.")
        first = batch[keys[0]]
    elif isinstance(batch, list | tuple) and batch:
        first = batch[0]
    try:
        return len(first)
    except TypeError:
        raise DataError(
            f"The samples of a batch can't be counted: it is a {type(batch).__name__} whose first "
            f"member is of type {type(first).__name__}. A collate function should give a dict, a "
            f"list or a tensor whose first member has the samples along its first axis."
        ) from None


def _to_tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of columns whose arrays are tensors of the same memory; torch's own way is slow."""
    to_tensor = from_numpy if get_worker_info() is None else _sent
    return {
        name: to_tensor(column)
        if isinstance(column, np.ndarray) and column.dtype.kind in "biufc"
        else column
        for name, column in columns.items()
    }
