/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The job in a library that is opened as Python opens extensions: what it is linked to is in no global scope. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void* const library = dlopen(FOREIGN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int (*work)(void) = NULL;
    if (library != NULL) *(void**)&work = dlsym(library, "foreign_work");
    if (work == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return work();
}
