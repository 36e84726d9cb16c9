// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
template <>
inline field_table fields_of<point>()
{
    using of = point;
    static const field all[] = {member("x", &of::x)};
    return {all};
}
