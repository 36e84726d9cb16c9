// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "real.h"
#include "loader.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int lost_result(void) { return 2; } // ncclSystemError
static int absent_result(void) { return 5; } // ncclInvalidUsage
static const char* absent_text(void) { return "collprobe: NCCL has no such function"; }
static struct {
    uint64_t low, high;
} absent_other(void) { return (__typeof__(absent_other())){0, 0}; }

static const struct {
    const char* name; // of the strong alias, which starts with a p
    void* absent;
} names[symbols] = {
#define COLLPROBE_DATA(name, ...) {"pnccl" #name, absent_result},
#define COLLPROBE_COUNT(name, ...) {"pnccl" #name, absent_result},
#define COLLPROBE_STATE(name, ...) {"pnccl" #name, absent_result},
#define COLLPROBE_FORWARD(name, first, absent) {"pnccl" #name, absent_##absent},
#include "symbols.def"
};

// Stands for NCCL where there is none.
#define lost_text absent_text
#define lost_other absent_other
static void* const lost[symbols] = {
#define COLLPROBE_DATA(name, ...) lost_result,
#define COLLPROBE_COUNT(name, ...) lost_result,
#define COLLPROBE_STATE(name, ...) lost_result,
#define COLLPROBE_FORWARD(name, first, absent) lost_##absent,
#include "symbols.def"
};
static const struct real nothing = {.functions = lost, .own = lost};

// What is known stays known, so that all calls from an object reach the same NCCL, whatever is loaded later.
static _Atomic(struct real*) reals;

struct caller {
    const struct link_map* object;
    ElfW(Addr) address; // these two tell it from a later object that got the same place
    const void* dynamic;
    const struct real* real;
    struct caller* next;
};
static _Atomic(struct caller*) callers;

// By return address: an open hash table which only grows. Calls from more places than it has room for take
// the long way.
enum { places = 2048, steps = 16 };
static struct {
    _Atomic(const void*) caller;
    _Atomic(const struct real*) real;
} known_places[places];

void say(const char* text, ...)
{
    char line[1024] = "collprobe: ";
    size_t size = strlen(line);
    va_list texts;
    va_start(texts, text);
    for (; text != NULL; text = va_arg(texts, const char*))
        for (; *text != '\0' && size < sizeof line - 1; ++text) line[size++] = *text == '\n' ? ' ' : *text;
    va_end(texts);
    line[size++] = '\n';
    if (write(STDERR_FILENO, line, size) < 0) return; // it cannot be told
}

struct link_map* object_of(const void* address)
{
    Dl_info information;
    void* object = NULL;
    return dladdr1 != NULL && dladdr1(address, &information, &object, RTLD_DL_LINKMAP) != 0 ? object : NULL;
}

static struct link_map* own_object(void) { return object_of(&nothing); }

const char* own_folder(char* path, size_t size)
{
    const struct link_map* const object = own_object();
    const char* const slash = object != NULL ? strrchr(object->l_name, '/') : NULL;
    if (slash == NULL || (size_t)(slash - object->l_name) + 2 > size) return NULL;
    const size_t length = (size_t)(slash - object->l_name) + 1;
    memcpy(path, object->l_name, length);
    path[length] = '\0';
    return path;
}

// A function, but not one of this object.
static void* found(void* handle, const char* name)
{
    void* const function = handle != NULL ? dlsym(handle, name) : NULL;
    return function != NULL && object_of(function) != own_object() ? function : NULL;
}

static void* found_in(void* handle, const char* strong)
{
    void* const function = found(handle, strong);
    return function != NULL ? function : found(handle, strong + 1);
}

void* open_object(const struct link_map* object)
{
    return *object->l_name == '\0' ? dlopen(NULL, RTLD_LAZY)
                                   : dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
}

// The loader has the objects in the order in which they came.
struct order {
    const struct link_map *one, *other, *first;
};

static int look_at(struct dl_phdr_info* information, size_t size, void* argument)
{
    (void)size;
    struct order* const order = argument;
    if (information->dlpi_name == order->one->l_name) order->first = order->one;
    else if (information->dlpi_name == order->other->l_name) order->first = order->other;
    return order->first != NULL;
}

static int loaded_before(const struct link_map* one, const struct link_map* other)
{
    struct order order = {one, other, NULL};
    dl_iterate_phdr(look_at, &order);
    return order.first == one;
}

// Where another interposer stands between this object and NCCL, its function; else null.
static void* interposed(const char* strong)
{
    void* const next = found(RTLD_NEXT, strong + 1);
    void* const nccl = next != NULL ? found(RTLD_NEXT, strong) : NULL;
    return nccl == NULL || object_of(nccl) != object_of(next) ? next : NULL;
}

static const struct real* real_in(struct link_map* object)
{
    for (struct real* real = atomic_load_explicit(&reals, memory_order_acquire); real != NULL;
         real = real->next)
        if (real->object == object) return real;
    struct tables {
        struct real real;
        void *own[symbols], *functions[symbols];
    }* const tables = object != NULL ? calloc(1, sizeof *tables) : NULL;
    if (tables == NULL) return NULL;
    struct real* const real = &tables->real;
    real->own = tables->own;
    real->functions = tables->functions;
    const char* const chain = getenv("COLLPROBE_CHAIN");
    const int chained = chain != NULL && strcmp(chain, "1") == 0;
    void* const handle = open_object(object); // stays open: NCCL is not unloaded under a communicator
    for (int symbol = 0; symbol < symbols; ++symbol) {
        const char* const strong = names[symbol].name;
        void* const own = found_in(handle != NULL ? handle : RTLD_NEXT, strong);
        void* const next = chained ? interposed(strong) : NULL;
        tables->own[symbol] = own != NULL ? own : names[symbol].absent;
        tables->functions[symbol] = next != NULL ? next : tables->own[symbol];
    }
    real->object = object;
    char* const path = strdup(*object->l_name != '\0' ? object->l_name : "/proc/self/exe");
    real->nccl.path = path != NULL ? path : "";
#define HOOK(member, name) \
    if (real->own[symbol_##name] != names[symbol_##name].absent) \
    *(void**)&real->nccl.member = real->own[symbol_##name]
    HOOK(all_gather, AllGather);
    HOOK(comm_count, CommCount);
    HOOK(comm_user_rank, CommUserRank);
    HOOK(comm_async_error, CommGetAsyncError);
    HOOK(get_version, GetVersion);
#undef HOOK
    struct real* first = atomic_load_explicit(&reals, memory_order_acquire);
    do {
        for (struct real* other = first; other != NULL; other = other->next)
            if (other->object == object) { // another thread was faster
                free(path);
                free(tables);
                return other;
            }
        real->next = first;
    } while (!atomic_compare_exchange_weak_explicit(
        &reals, &first, real, memory_order_acq_rel, memory_order_acquire));
    return real;
}

// As the loader would have bound the name in the object: to the first definition of the global scope at the
// time when the object was loaded, else in the object's own scope. The rest is for names that were bound at
// run time.
static void* bound(enum symbol symbol, struct link_map* object)
{
    const char* const strong = names[symbol].name;
    void* const global = found(RTLD_NEXT, strong);
    if (global != NULL && (object == NULL || loaded_before(object_of(global), object))) return global;
    void* function = NULL;
    if (object != NULL) {
        void* const handle = open_object(object);
        function = found_in(handle, strong);
        // Not the weak name in the object itself: that may be another interposer, which would be called
        // again.
        if (function != NULL && object_of(function) == object) function = found(handle, strong);
        if (handle != NULL) dlclose(handle);
    }
    if (function == NULL) {
        void* const handle = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
        function = found_in(handle, strong);
        if (handle != NULL) dlclose(handle);
    }
    if (function == NULL) function = global;
    if (function == NULL) function = found(RTLD_NEXT, strong + 1);
    if (function == NULL) {
        const char* const path = secure_getenv("COLLPROBE_NCCL_PATH");
        if (path != NULL && *path != '\0') function = found_in(dlopen(path, RTLD_LAZY | RTLD_LOCAL), strong);
    }
#ifdef COLLPROBE_PROXY
    if (function == NULL) function = found_in(open_installed(object), strong);
#endif
    return function;
}

static const struct real* no_real(enum symbol symbol)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        say(names[symbol].name + 1, ": no NCCL was found; COLLPROBE_NCCL_PATH can name its file", NULL);
    return &nothing;
}

static const struct real* find(enum symbol symbol, struct link_map* object)
{
    if (object != NULL)
        for (struct caller* caller = atomic_load_explicit(&callers, memory_order_acquire); caller != NULL;
             caller = caller->next)
            if (caller->object == object && caller->address == object->l_addr
                && caller->dynamic == object->l_ld)
                return caller->real;
    if (dlsym == NULL || dlopen == NULL || dlclose == NULL || dlerror == NULL) return no_real(symbol);
    void* function = bound(symbol, object);
    if (function == NULL && symbol != symbol_CommInitRank) // which no NCCL lacks
        function = bound(symbol_CommInitRank, object);
    const struct real* const real = function != NULL ? real_in(object_of(function)) : NULL;
    dlerror(); // the program shall not find errors of these look-ups
    if (real == NULL) return no_real(symbol);
    struct caller* const caller = object != NULL ? malloc(sizeof *caller) : NULL;
    if (caller != NULL) {
        *caller = (struct caller){
            object, object->l_addr, object->l_ld, real, atomic_load_explicit(&callers, memory_order_relaxed)};
        while (!atomic_compare_exchange_weak_explicit(
            &callers, &caller->next, caller, memory_order_release, memory_order_relaxed)) {}
    }
    return real;
}

static size_t place_of(const void* caller)
{
    return (size_t)(((uint64_t)(uintptr_t)caller * UINT64_C(0x9e3779b97f4a7c15)) >> 53);
}
_Static_assert(places == 1 << (64 - 53), "the shift gives a place");

__attribute__((cold, noinline)) static const struct real* find_and_keep(
    enum symbol symbol, const void* caller)
{
    const int error = errno;
    const struct real* const real = find(symbol, object_of(caller));
    size_t place = place_of(caller);
    for (int step = 0; real != &nothing && step < steps; ++step, place = (place + 1) % places) {
        const void* kept = NULL;
        if (atomic_compare_exchange_strong_explicit(
                &known_places[place].caller, &kept, caller, memory_order_acq_rel, memory_order_acquire)
            || kept == caller) {
            atomic_store_explicit(&known_places[place].real, real, memory_order_release);
            break;
        }
    }
    errno = error;
    return real;
}

const struct real* real_of(enum symbol symbol, const void* caller)
{
    size_t place = place_of(caller);
    for (int step = 0; step < steps; ++step, place = (place + 1) % places) {
        const void* const kept = atomic_load_explicit(&known_places[place].caller, memory_order_acquire);
        if (kept == caller) {
            const struct real* const real
                = atomic_load_explicit(&known_places[place].real, memory_order_acquire);
            if (real != NULL) return real;
        }
        if (kept == NULL || kept == caller) break;
    }
    return find_and_keep(symbol, caller);
}
