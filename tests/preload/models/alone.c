/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program with an NCCL in itself, for the check of programs only. */
__attribute__((visibility("default"))) int ncclAllReduce(void) { return 0; }

int main(void) { return ncclAllReduce(); }
