"""Lists of blocks: what an honest driver sends passes, and each broken rule is named."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from csi_client.blocks import BlockCheck, RuleBroken

FIXED = csi.BlockMetadataType.FIXED_LENGTH
VARIABLE = csi.BlockMetadataType.VARIABLE_LENGTH
CAPACITY = 1000


def answer(*blocks, kind=VARIABLE, capacity=CAPACITY):
    return csi.GetMetadataAllocatedResponse(
        block_metadata_type=kind,
        volume_capacity_bytes=capacity,
        block_metadata=[csi.BlockMetadata(byte_offset=o, size_bytes=s) for o, s in blocks],
    )


def see(*answers, starting_offset=0, max_results=0):
    check = BlockCheck(starting_offset, max_results)
    for one in answers:
        check.see(one)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([], id="nothing at all"),
        pytest.param([answer()], id="no block"),
        pytest.param([answer((0, 10), (10, 5)), answer((15, 1)), answer()], id="adjacent"),
        pytest.param([answer((0, 10), (20, 10), kind=FIXED)], id="fixed, with gaps"),
        pytest.param([answer((0, 300), (900, 100), kind=FIXED)], id="a short last block"),
        pytest.param([answer((600, 300), (900, 300), kind=FIXED)], id="beyond the capacity"),
        pytest.param([answer((0, CAPACITY))], id="the whole volume"),
    ],
)
def test_honest(answers):
    see(*answers)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        pytest.param([answer((20, 10), (0, 10))], "ascending order", id="descending"),
        pytest.param([answer((0, 10), (9, 10))], "ascending order", id="overlapping"),
        pytest.param([answer((0, 10)), answer((5, 10))], "ascending order", id="later message"),
        pytest.param([answer((0, 10)), answer((0, 10))], "ascending order", id="repeated"),
        pytest.param([answer((-5, 10))], "at byte -5", id="negative offset"),
        pytest.param([answer((0, 0))], "a block of 0 bytes", id="empty block"),
        pytest.param([answer((0, -1))], "a block of -1 bytes", id="negative size"),
        pytest.param([answer((990, 11))], "beyond the volume capacity 1000", id="too far"),
        pytest.param([answer((CAPACITY, 10), kind=FIXED)], "beyond the volume", id="fixed, far"),
        pytest.param(
            [answer((0, 10), (10, 9), kind=FIXED)], "blocks of 10 and of other", id="fixed sizes"
        ),
        pytest.param(
            [answer((0, 10), kind=FIXED), answer((10, 20), kind=FIXED)],
            "blocks of 10 and of other",
            id="later",
        ),
        pytest.param(
            [answer((0, 10), (990, 20), kind=FIXED)], "blocks of 10 and of other", id="a long last"
        ),
        pytest.param([answer(kind=0)], "unknown block type 0", id="no type"),
        pytest.param([answer(kind=7)], "unknown block type 7", id="type of the future"),
        pytest.param([answer(), answer(kind=FIXED)], "changed the block type", id="other type"),
        pytest.param([answer(capacity=0)], "the volume capacity 0", id="no capacity"),
        pytest.param([answer(), answer(capacity=9)], "changed the volume capacity", id="grows"),
    ],
)
def test_broken_rules(answers, words):
    with pytest.raises(RuleBroken, match=words):
        see(*answers)


def test_the_starting_offset_and_the_number_of_blocks():
    see(answer((0, 10), (10, 10)), starting_offset=9, max_results=2)
    with pytest.raises(
        RuleBroken, match="ends at byte 10, but was asked for blocks that end after"
    ):
        see(answer((0, 10)), starting_offset=10)
    with pytest.raises(RuleBroken, match="sent 3 blocks in one message"):
        see(answer((0, 1), (1, 1), (2, 1)), max_results=2)


def test_a_large_offset():
    top = 2**63 - 1
    see(answer((top - 1, 1), capacity=top))
    with pytest.raises(RuleBroken, match="beyond"):
        see(answer((top, top), capacity=top))
