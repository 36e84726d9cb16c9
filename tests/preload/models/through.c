/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program that reaches NCCL by a library of its own. */
int model_run(const char* scenario);

int main(int count, char** words) { return model_run(count > 1 ? words[1] : "functions"); }
