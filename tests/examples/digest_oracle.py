# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The digest of scan/digest.md, written from that document."""
import struct

ALL, GOLDEN = (1 << 64) - 1, 0x9e3779b97f4a7c15


def mix64(x):
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & ALL
    x = (x ^ x >> 27) * 0x94d049bb133111eb & ALL
    return x ^ x >> 31


def sums(raw, first=0):
    """Of bytes whose first one is at the place `first`, a multiple of 4."""
    s1 = s2 = 0
    for i, (word,) in enumerate(struct.iter_unpack("<I", raw + bytes(-len(raw) % 4)), first // 4):
        u, j = divmod(i, 2048)
        lane, place = j // 2 % 4, 2 * (j // 8 % 2) + j % 2
        product = ((mix64((j + 1) * GOLDEN & ALL) >> 32) | 1) * word
        weight = ((mix64(0x13198a2e03707344 + lane * GOLDEN & ALL) | 1) * (257 - 2 * (j // 16))
                  + 2 * (mix64(0x13198a2e03707344 + (4 + lane) * GOLDEN & ALL) | 1) * (3 - place))
        s1 += (mix64(0x243f6a8885a308d3 + 2 * u * GOLDEN & ALL) | 1) * product
        s2 += (mix64(0x243f6a8885a308d3 + (2 * u + 1) * GOLDEN & ALL) | 1) * weight * product
    return s1 & ALL, s2 & ALL


def digest(first, second, size):
    return mix64(first + mix64(second + (size + 1) * 0xd1342543de82ef95 & ALL) & ALL)
