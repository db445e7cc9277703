"""Checks the blocks that a driver lists for a snapshot, against the rules of the CSI specification.

A backup program trusts the list: it copies what is listed and skips the rest. So a list that breaks
a rule ends the stream, where csi-snapshot-metadata would pass it on.

Source: CSI 1.12, spec.md, "GetMetadataAllocatedResponse" and "GetMetadataDeltaResponse".
"""

from __future__ import annotations

from itertools import islice
from operator import add, attrgetter, gt
from typing import TYPE_CHECKING, Final

from csi_client import messages as csi

if TYPE_CHECKING:
    from typing import TypeAlias

    Answer: TypeAlias = csi.GetMetadataAllocatedResponse | csi.GetMetadataDeltaResponse

_OFFSET, _SIZE = attrgetter("byte_offset"), attrgetter("size_bytes")
_FIXED: Final = csi.BlockMetadataType.FIXED_LENGTH
_KNOWN_TYPES: Final = (_FIXED, csi.BlockMetadataType.VARIABLE_LENGTH)


class RuleBroken(Exception):  # noqa: N818 - the driver's mistake, not an error of this program
    """The driver broke a rule; the text completes the sentence "the driver ..."."""


class BlockCheck:
    """The state of one stream.

    Args:
        starting_offset: the first block must end after this byte.
        max_results: the most blocks of a message; 0 allows any number.
    """

    def __init__(self, starting_offset: int, max_results: int) -> None:
        self._max_results = max_results
        self._after = starting_offset
        self._end = 0
        self._type = self._capacity = 0
        self._fixed = 0  # the size of all blocks; 0 while it is unknown

    def see(self, answer: Answer) -> None:
        """Check the next message.

        Python visits each block only in the three C loops of `map`; with a loop of its own, the
        check would take longer than everything else that happens to a message.

        Raises:
            RuleBroken: the message must not be passed on.
        """
        self._see_constants(answer)
        if not answer.block_metadata:
            return
        if 0 < self._max_results < len(answer.block_metadata):
            raise RuleBroken(
                f"sent {len(answer.block_metadata)} blocks in one message, but was asked for at "
                f"most {self._max_results}"
            )
        offsets = list(map(_OFFSET, answer.block_metadata))
        sizes = list(map(_SIZE, answer.block_metadata))
        if min(sizes) <= 0:
            raise RuleBroken(f"sent a block of {min(sizes)} bytes")
        ends = list(map(add, offsets, sizes))
        if offsets[0] < self._end or any(map(gt, ends, islice(offsets, 1, None))):
            self._tell_order(offsets, ends)
        if ends[0] <= self._after:
            raise RuleBroken(
                f"sent a block that ends at byte {ends[0]}, but was asked for blocks that end "
                f"after byte {self._after}"
            )
        self._see_sizes(offsets, sizes)
        self._end = ends[-1]

    def _see_constants(self, answer: Answer) -> None:
        kind, capacity = answer.block_metadata_type, answer.volume_capacity_bytes
        if not self._type:
            if kind not in _KNOWN_TYPES:
                raise RuleBroken(f"sent the unknown block type {kind}")
            if capacity <= 0:
                raise RuleBroken(f"sent the volume capacity {capacity}")
            self._type, self._capacity = kind, capacity
        if kind != self._type:
            raise RuleBroken(f"changed the block type from {self._type} to {kind}")
        if capacity != self._capacity:
            raise RuleBroken(f"changed the volume capacity from {self._capacity} to {capacity}")

    def _see_sizes(self, offsets: list[int], sizes: list[int]) -> None:
        """Check the sizes, and that the last block, and so every block, is within the volume.

        The last block of a volume may be shorter than the others, or reach beyond the capacity if
        the capacity is not a multiple of the fixed size.
        """
        last = offsets[-1] + sizes[-1]
        is_fixed = self._type == _FIXED
        if offsets[-1] >= self._capacity or (last > self._capacity and not is_fixed):
            raise RuleBroken(
                f"sent a block that ends at byte {last}, beyond the volume capacity "
                f"{self._capacity}"
            )
        if not is_fixed:
            return
        self._fixed = self._fixed or sizes[0]
        others = len(sizes) - 1 if last >= self._capacity else len(sizes)
        if sizes.count(self._fixed) < others or sizes[-1] > self._fixed:
            odd = next((one for one in sizes if one != self._fixed), self._fixed)
            raise RuleBroken(f"sent blocks of {self._fixed} and of {odd} bytes as FIXED_LENGTH")

    def _tell_order(self, offsets: list[int], ends: list[int]) -> None:
        """Name the first block that is out of order.

        Raises:
            RuleBroken: always.
        """
        before = self._end
        for offset, end in zip(offsets, ends, strict=True):
            if offset < before:
                raise RuleBroken(
                    f"sent a block at byte {offset} after a block that ends at byte {before}; "
                    "blocks must be in ascending order and must not overlap"
                )
            before = end
