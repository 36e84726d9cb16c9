// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "engine_file.h"
#include "loader.h"
#include "real.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The loader maps a file that is cut off without a complaint, and the first access to what is missing ends
// the process. Other defects it finds itself.
static int cut_off(const char* path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const off_t size = lseek(file, 0, SEEK_END);
    ElfW(Ehdr) header;
    int cut = pread(file, &header, sizeof header, 0) != (ssize_t)sizeof header;
    const int known
        = !cut && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_phentsize == sizeof(ElfW(Phdr));
    for (unsigned each = 0; known && !cut && each < header.e_phnum; ++each) {
        ElfW(Phdr) segment;
        const off_t place = (off_t)(header.e_phoff + each * sizeof segment);
        cut = pread(file, &segment, sizeof segment, place) != (ssize_t)sizeof segment
            || (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > (ElfW(Off))size);
    }
    close(file);
    return cut;
}

const struct collprobe_hooks* open_engine(void)
{
    const char* const enabled = getenv("COLLPROBE_ENABLE");
    if (enabled != NULL && strcmp(enabled, "0") == 0) return NULL;
    static const char name[] = "libcollprobe_engine.so";
    char beside[PATH_MAX];
    const char* path = secure_getenv("COLLPROBE_ENGINE");
    if (path == NULL || *path == '\0') {
        path = own_folder(beside, sizeof beside - sizeof name);
        if (path == NULL) {
            say("its folder is not known, so that ", name, " is not opened; calls pass through", NULL);
            return NULL;
        }
        strcat(beside, name);
    }
    if (cut_off(path)) {
        say(path, " is not complete; calls pass through", NULL);
        return NULL;
    }
    void* const engine = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (engine == NULL) {
        const char* const error = dlerror();
        say(error != NULL ? error : path, "; calls pass through", NULL);
        return NULL;
    }
    void* const symbol = dlsym(engine, "collprobe_engine_open");
    if (symbol == NULL) {
        dlerror();
        say(path, " is no engine; calls pass through", NULL);
        return NULL;
    }
    collprobe_engine_open_function open;
    memcpy(&open, &symbol, sizeof open);
    const struct collprobe_hooks* const hooks = open(COLLPROBE_PRELOAD_ABI);
    if (hooks != NULL && hooks->abi != COLLPROBE_PRELOAD_ABI) {
        say(path, " is of another version; calls pass through", NULL);
        return NULL;
    }
    return hooks;
}
