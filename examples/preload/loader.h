// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
//
// The loader's functions by their oldest version. glibc 2.34 moved them from libdl.so.2 to libc.so.6 with a
// new one, so that an object built there would not load with an older glibc. They are weak: in a process
// without libdl.so.2, which cannot have reached NCCL by dlopen either, they may be missing.
#pragma once

#include <dlfcn.h>
#include <link.h>

#pragma weak dladdr1
#pragma weak dlclose
#pragma weak dlerror
#pragma weak dlinfo
#pragma weak dlopen
#pragma weak dlsym

#if defined(__x86_64__)
__asm__(".symver dladdr1, dladdr1@GLIBC_2.3.3");
__asm__(".symver dlclose, dlclose@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
__asm__(".symver dlinfo, dlinfo@GLIBC_2.3.3");
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dladdr1, dladdr1@GLIBC_2.17");
__asm__(".symver dlclose, dlclose@GLIBC_2.17");
__asm__(".symver dlerror, dlerror@GLIBC_2.17");
__asm__(".symver dlinfo, dlinfo@GLIBC_2.17");
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#else
#error "The preload knows x86-64 and aarch64"
#endif
