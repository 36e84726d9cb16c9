// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What closures.py must find.
struct counter {
    int count = 0;
    void add(int x) { count += x; }
    void add_twice(int x)
    {
        const auto both = [&] { add(x); };
        both();
        both();
    }
};

int count_of(int x)
{
    counter all;
    all.add_twice(x);
    return all.count;
}
