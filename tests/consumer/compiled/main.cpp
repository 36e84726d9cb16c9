// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

std::string tell_compiled();
std::string tell_header_only();

/// Both forms of the library work, and say the same.
int main()
{
    const std::string compiled = tell_compiled();
    std::printf("%s\n", compiled.c_str());
    if (compiled.find("bucket 0 (tell.cpp:") == std::string::npos) return 1;
#if defined(ONE_FORM)
    return 0;
#else
    return compiled == tell_header_only() ? 0 : 2;
#endif
}
