# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Files of tensors, written from nothing but the documents of the formats."""
import json
import struct


def npy(path, descr, shape, raw, fortran=False, version=1):
    header = str({"descr": descr, "fortran_order": fortran, "shape": tuple(shape)}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + header + raw)
    return path


def safetensors(path, tensors, header=()):
    """`tensors`: name: (dtype, shape, bytes). `header`: what it has beside them."""
    header, data = dict(header), b""
    for key, (dtype, shape, raw) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
