// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "mpi_library.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>

#include "say.hpp"

namespace collprobe_mpi {
namespace {

#if defined(OPEN_MPI)
constexpr const char* own_names[] = {"libmpi.so.40"};
constexpr const char* own_versions[] = {"Open MPI"};
#else
constexpr const char* own_names[] = {"libmpi.so.12", "libmpich.so.12"};
constexpr const char* own_versions[] = {"MPICH", "MVAPICH", "Intel(R) MPI"};
#endif
constexpr const char* all_names[] = {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};

/// The first of these libraries that is loaded and has the symbol.
template <std::size_t N>
void* find_in(const char* const (&names)[N], const char* symbol) noexcept
{
    for (const char* const name : names) {
        void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
        if (library == nullptr) continue;
        void* const found = dlsym(library, symbol);
        dlclose(library); // the program keeps it
        if (found != nullptr) return found;
    }
    return nullptr;
}

/// The program may have the library's objects as its own, by copy relocations.
[[maybe_unused]] void* find_object(const char* name) noexcept
{
    void* const found = dlsym(RTLD_DEFAULT, name);
    return found != nullptr ? found : find_in(own_names, name);
}

void* find_symbol(const char* name) noexcept
{
    void* const found = find_in(own_names, name);
    return found != nullptr ? found : dlsym(RTLD_DEFAULT, name);
}

bool is_own(const char* version) noexcept
{
    for (const char* const own : own_versions) {
        if (std::strstr(version, own) != nullptr) return true;
    }
    return false;
}

/// The next object's function, which is that of the layer for another MPI where both are preloaded.
void* find_behind(const char* symbol) noexcept
{
    void* found = dlsym(RTLD_NEXT, symbol);
    if (found == nullptr) found = find_in(all_names, symbol);
    return found;
}

void say_none_fits(const char* version) noexcept
{
    Dl_info next{};
    void* const call = dlsym(RTLD_NEXT, "MPI_Allreduce");
    const bool is_followed = call != nullptr && dladdr(call, &next) != 0 && next.dli_fname != nullptr
        && std::strstr(next.dli_fname, "libcollprobe_mpi_") != nullptr;
    if (!is_followed && is_first_process()) {
        say("the program's MPI (%.60s) is none that the preloaded layer is built for: nothing is looked at", version);
    }
}

mpi_library find() noexcept
{
    mpi_library found;
    char version[1 << 14] = "unknown"; // MPICH asks for 8192
    int length = 0;
    constexpr const char* symbol = "PMPI_Get_library_version";
    void* get_version = find_symbol(symbol);
    if (get_version == nullptr) get_version = find_in(all_names, symbol);
    if (get_version != nullptr) reinterpret_cast<decltype(&MPI_Get_library_version)>(get_version)(version, &length);
    found.is_known = is_own(version);
    const auto find_call = [&](const char* profiling_name) { // of another MPI: the next object's MPI_...
        return found.is_known ? find_symbol(profiling_name) : find_behind(profiling_name + 1);
    };
#define COLLPROBE_FIND(name) found.name = reinterpret_cast<decltype(found.name)>(find_call("PMPI_" #name));
    COLLPROBE_MPI_CALLS(COLLPROBE_FIND)
    COLLPROBE_MPI_LARGE_CALLS(COLLPROBE_FIND)
    if (!found.is_known) {
        std::replace(version, version + sizeof version, '\t', ' ');
        version[std::strcspn(version, "\n,")] = '\0';
        say_none_fits(version);
        return found;
    }
    COLLPROBE_MPI_TOOLS(COLLPROBE_FIND)
    COLLPROBE_MPI_CONVERSIONS(COLLPROBE_FIND)
#undef COLLPROBE_FIND
#if defined(OPEN_MPI)
#define COLLPROBE_OBJECT(constant, symbol) static_cast<decltype(constant)>(find_object(symbol))
#else
#define COLLPROBE_OBJECT(constant, symbol) constant
#endif
    found.world = COLLPROBE_OBJECT(MPI_COMM_WORLD, "ompi_mpi_comm_world");
    found.self = COLLPROBE_OBJECT(MPI_COMM_SELF, "ompi_mpi_comm_self");
    found.no_request = COLLPROBE_OBJECT(MPI_REQUEST_NULL, "ompi_request_null");
    found.errors_return = COLLPROBE_OBJECT(MPI_ERRORS_RETURN, "ompi_mpi_errors_return");
    found.byte = COLLPROBE_OBJECT(MPI_BYTE, "ompi_mpi_byte");
    found.floats[0] = COLLPROBE_OBJECT(MPI_FLOAT, "ompi_mpi_float");
    found.floats[1] = COLLPROBE_OBJECT(MPI_REAL, "ompi_mpi_real");
    found.floats[2] = COLLPROBE_OBJECT(MPI_REAL4, "ompi_mpi_real4");
    found.doubles[0] = COLLPROBE_OBJECT(MPI_DOUBLE, "ompi_mpi_double");
    found.doubles[1] = COLLPROBE_OBJECT(MPI_DOUBLE_PRECISION, "ompi_mpi_dblprec");
    found.doubles[2] = COLLPROBE_OBJECT(MPI_REAL8, "ompi_mpi_real8");
    found.operations[0] = COLLPROBE_OBJECT(MPI_SUM, "ompi_mpi_op_sum");
    found.operations[1] = COLLPROBE_OBJECT(MPI_PROD, "ompi_mpi_op_prod");
    found.operations[2] = COLLPROBE_OBJECT(MPI_MAX, "ompi_mpi_op_max");
    found.operations[3] = COLLPROBE_OBJECT(MPI_MIN, "ompi_mpi_op_min");
#undef COLLPROBE_OBJECT
    return found;
}

} // namespace

void* require_behind(const char* symbol) noexcept
{
    if (void* const found = find_behind(symbol)) return found;
    say("the program calls %s, which its MPI does not have: this layer was built for another MPI", symbol);
    std::abort();
}

const mpi_library& mpi() noexcept
{
    static const mpi_library found = find();
    return found;
}

} // namespace collprobe_mpi
