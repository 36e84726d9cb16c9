/* SPDX-FileCopyrightText: The collprobe authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The models of NCCL and of the engine write what they see to one file, MODEL_TRACE, in the order in which it
 * happens. Where it is empty they return at once. */
#ifndef COLLPROBE_MODEL_TRACE_H
#define COLLPROBE_MODEL_TRACE_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((format(printf, 1, 2))) static void trace(const char* format, ...)
{
    static const char* path;
    if (path == NULL && (path = getenv("MODEL_TRACE")) == NULL) path = "";
    if (*path == '\0') return;
    char line[1024];
    va_list values;
    va_start(values, format);
    int size = vsnprintf(line, sizeof line - 1, format, values);
    va_end(values);
    line[size++] = '\n';
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (write(file, line, (size_t)size) != size) _exit(99);
    close(file);
}

#endif
