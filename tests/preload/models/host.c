/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Opens libraries as Python opens its extensions, and runs a scenario in each: host SCENARIO LIBRARY... A
 * library after a + is opened for all, and one after a ! is not run. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** words)
{
    int status = 0;
    for (int each = 2; each < count; ++each) {
        const char* name = words[each];
        const int global = *name == '+';
        name += global;
        const int opened_only = *name == '!';
        name += opened_only;
        void* const library = dlopen(name, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        if (opened_only) continue;
        int (*run)(const char*);
        *(void**)&run = dlsym(library, "model_run");
        if (run == NULL) return 2;
        status = run(words[1]);
    }
    return status;
}
