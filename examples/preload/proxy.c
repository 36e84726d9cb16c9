// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
//
// The proxy is loaded in the place of NCCL, which nobody else loads then.
#include "first_stage.h"
#include "loader.h"
#include "real.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// The state of a file by the system call itself: glibc 2.33 gave its function a new version.
static int state_of(const char* path, struct stat* state)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, state, 0);
}

static int is_this_object(const char* path)
{
    const struct link_map* const object = object_of(&is_this_object);
    struct stat own, other;
    return object != NULL && state_of(object->l_name, &own) == 0 && state_of(path, &other) == 0
        && own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

// With a slash in it the path is no name that the loader would find to be this object's.
static void* open_file(const char* path)
{
    return strchr(path, '/') != NULL && access(path, R_OK) == 0 && !is_this_object(path)
        ? dlopen(path, RTLD_LAZY | RTLD_LOCAL)
        : NULL;
}

static void* open_beside(const char* folder, size_t length, const char* rest)
{
    char path[PATH_MAX];
    const int size = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, rest);
    return size > 0 && (size_t)size < sizeof path ? open_file(path) : NULL;
}

// Calls `open` with each file that is mapped, until that gives a handle.
static void* open_by_maps(void* (*open)(const char* path))
{
    FILE* const maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) return NULL;
    char line[PATH_MAX + 128], last[PATH_MAX] = "";
    void* handle = NULL;
    while (handle == NULL && fgets(line, sizeof line, maps) != NULL) {
        char* const path = strchr(line, '/');
        char* const end = path != NULL ? strchr(path, '\n') : NULL;
        if (end == NULL) continue;
        *end = '\0';
        if (strlen(path) >= sizeof last || strcmp(path, last) == 0) continue;
        strcpy(last, path);
        handle = open(path);
    }
    fclose(maps);
    return handle;
}

static void* open_nccl(const char* path)
{
    const char* const name = strrchr(path, '/') + 1;
    return strncmp(name, "libnccl.so", strlen("libnccl.so")) == 0 ? open_file(path) : NULL;
}

// Of a Python environment: the wheel of NCCL, then the library beside Torch, then that of the environment
// itself.
static void* open_beside_package(const char* path)
{
    static const char* const names[] = {"/site-packages/", "/dist-packages/"};
    for (size_t name = 0; name < sizeof names / sizeof *names; ++name) {
        const char* const found = strstr(path, names[name]);
        if (found == NULL) continue;
        const size_t length = (size_t)(found - path) + strlen(names[name]) - 1;
        static const char* const places[]
            = {"nvidia/nccl/lib/libnccl.so.2", "torch/lib/libnccl.so.2", "../../libnccl.so.2"};
        for (size_t place = 0; place < sizeof places / sizeof *places; ++place) {
            void* const handle = open_beside(path, length, places[place]);
            if (handle != NULL) return handle;
        }
    }
    return NULL;
}

static int is_standard(const char* folder)
{
    return strncmp(folder, "/lib", 4) == 0 || strncmp(folder, "/usr/lib", 8) == 0;
}

// Where the loader would have looked for the object: its DT_RPATH or DT_RUNPATH and LD_LIBRARY_PATH.
static void* open_on_path_of(const struct link_map* object)
{
    void* const opened = object != NULL && dlinfo != NULL ? open_object(object) : NULL;
    if (opened == NULL) return NULL;
    void* handle = NULL;
    Dl_serinfo size;
    if (dlinfo(opened, RTLD_DI_SERINFOSIZE, &size) == 0) {
        Dl_serinfo* const folders = calloc(1, size.dls_size);
        if (folders != NULL) {
            folders->dls_size = size.dls_size;
            folders->dls_cnt = size.dls_cnt;
            if (dlinfo(opened, RTLD_DI_SERINFO, folders) == 0)
                for (unsigned each = 0; each < folders->dls_cnt && handle == NULL; ++each) {
                    const char* const folder = folders->dls_serpath[each].dls_name;
                    if (!is_standard(folder)) handle = open_beside(folder, strlen(folder), "libnccl.so.2");
                }
            free(folders);
        }
    }
    dlclose(opened);
    return handle;
}

static void* open_standard(void)
{
    static const char* const folders[] = {
#ifdef __x86_64__
        "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/local/cuda/targets/x86_64-linux/lib",
#else
        "/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/local/cuda/targets/sbsa-linux/lib",
#endif
        "/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/local/lib64", "/usr/local/lib", "/usr/lib64",
        "/usr/lib", "/lib64"};
    void* handle = NULL;
    for (size_t each = 0; each < sizeof folders / sizeof *folders && handle == NULL; ++each)
        handle = open_beside(folders[each], strlen(folders[each]), "libnccl.so.2");
    return handle;
}

void* open_installed(struct link_map* object)
{
    void* handle = open_by_maps(open_nccl);
    if (handle == NULL) handle = open_on_path_of(object);
    if (handle == NULL) handle = open_by_maps(open_beside_package);
    return handle != NULL ? handle : open_standard();
}

// Where a forwarder jumps to: `strong` ones, of pncclX, pass by other interposers.
__attribute__((visibility("hidden"))) void* collprobe_forwarded(unsigned index, const void* caller)
{
    enum { strong = 0x8000 };
    const enum symbol symbol = (enum symbol)(index & ~(unsigned)strong);
    const struct real* const outer = inside();
    const struct real* const real = outer != NULL ? outer : real_of(symbol, caller);
    return outer != NULL || (index & strong) != 0 ? real->own[symbol] : real->functions[symbol];
}
