"""Checks the blocks that a driver lists for a snapshot, against the rules of the CSI specification.

A backup program trusts the list: it copies what is listed and skips the rest. So a list that breaks
a rule ends the stream, where csi-snapshot-metadata would pass it on.

Source: CSI 1.12, spec.md, "GetMetadataAllocatedResponse" and "GetMetadataDeltaResponse".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from csi_client import messages as csi

if TYPE_CHECKING:
    from typing import TypeAlias

    Answer: TypeAlias = csi.GetMetadataAllocatedResponse | csi.GetMetadataDeltaResponse

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

        Raises:
            RuleBroken: the message must not be passed on.
        """
        self._see_constants(answer)
        blocks = answer.block_metadata
        if not blocks:
            return
        if 0 < self._max_results < len(blocks):
            raise RuleBroken(
                f"sent {len(blocks)} blocks in one message, but was asked for at most "
                f"{self._max_results}"
            )
        fixed = self._fixed = self._fixed or blocks[0].size_bytes
        end, others = self._end, 0
        # This loop is most of what a stream costs, so it does little and reads each field once.
        for block in blocks:
            offset, size = block.byte_offset, block.size_bytes
            if offset < end:
                raise RuleBroken(
                    f"sent a block at byte {offset} after a block that ends at byte {end}; blocks "
                    "must be in ascending order and must not overlap"
                )
            if size <= 0:
                raise RuleBroken(f"sent a block of {size} bytes")
            if size != fixed:
                others += 1
            end = offset + size
        self._see_bounds(blocks[0], offset, end)
        if others and self._type == _FIXED and not self._is_short_end(others, size, end):
            raise RuleBroken(f"sent blocks of {fixed} and of other sizes as FIXED_LENGTH")
        self._end = end

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

    def _see_bounds(self, first: csi.BlockMetadata, last_offset: int, end: int) -> None:
        """Check that the blocks are after the starting offset and within the volume.

        A last block of a fixed size may reach beyond a capacity that is not a multiple of the size.
        """
        first_end = first.byte_offset + first.size_bytes
        if first_end <= self._after:
            raise RuleBroken(
                f"sent a block that ends at byte {first_end}, but was asked for blocks that end "
                f"after byte {self._after}"
            )
        if last_offset >= self._capacity or (end > self._capacity and self._type != _FIXED):
            raise RuleBroken(
                f"sent a block that ends at byte {end}, beyond the volume capacity {self._capacity}"
            )

    def _is_short_end(self, others: int, size: int, end: int) -> bool:
        """Return True if only the last block of the volume has another size, and is shorter."""
        return others == 1 and size < self._fixed and end >= self._capacity
