/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The job in the program itself. */
int foreign_work(void);

int main(void) { return foreign_work(); }
