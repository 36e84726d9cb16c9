// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
inline void pause() { __builtin_ia32_pause(); }
template <class Iterator>
void sort(Iterator first, Iterator last) { std::stable_sort(first, last); }
