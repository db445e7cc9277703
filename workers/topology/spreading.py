"""Chooses the first preferred term for a claim without a selected node (P-325).

The start index depends only on the claim's name. So the claims of a StatefulSet are spread over the
terms by their ordinals, and the claims of one pod (`data-web-0`, `logs-web-0`) get the same place.
Two quirks are kept for compatibility (D-027): any trailing number counts as an ordinal, and the
namespace and the UID are ignored.
"""

from __future__ import annotations

_UINT32 = 2**32
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619


def fnv1_32(text: str) -> int:
    """Return the 32-bit FNV-1 hash (multiply, then xor) of the string's UTF-8 bytes.

    Source: P-325 step 3; Go `hash/fnv` New32, used by external-provisioner.
    """
    value = _FNV_OFFSET
    for byte in text.encode():
        value = value * _FNV_PRIME % _UINT32 ^ byte
    return value


def split_name(claim_name: str) -> tuple[str, int]:
    """Return the string to hash and the ordinal of a claim name (P-325 steps 1 and 2).

    `testpvcA-testset-1` -> (`testset`, 1), `testset-2` -> (`testset`, 2), `my-data` -> (`my-data`,
    0). An ordinal consists of ASCII digits and fits into 32 bits.
    """
    text, dash, number = claim_name.rpartition("-")
    if not (dash and number.isascii() and number.isdigit()):
        return claim_name, 0
    # The length is checked first, because int() refuses thousands of digits; 2^32 has ten digits.
    digits = number.lstrip("0") or "0"
    if len(digits) > len(str(_UINT32)) or int(digits) >= _UINT32:
        return claim_name, 0
    return text.rpartition("-")[2], int(digits)


def start_index(claim_name: str, count: int) -> int:
    """Return the index of the first preferred term among `count` terms (P-325 step 4).

    An empty name is hashed as the empty string; csi-provisioner picks a random term (P-908).
    """
    text, ordinal = split_name(claim_name)
    return (fnv1_32(text) + ordinal) % _UINT32 % count
