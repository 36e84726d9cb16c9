// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/sum/combine.hpp>

/// MPI's names of the library's element types and reductions.
namespace collprobe::inline COLLPROBE_ABI::mpi::detail {

template <int bytes>
MPI_Datatype unsigned_type() noexcept
{
    if constexpr (bytes == 1) return MPI_UINT8_T;
    else if constexpr (bytes == 2) return MPI_UINT16_T;
    else if constexpr (bytes == 4) return MPI_UINT32_T;
    else return MPI_UINT64_T;
}

/// An element of which only the bits matter.
template <element T>
MPI_Datatype bits_type() noexcept
{
    return unsigned_type<sizeof(T)>();
}

/// An element in a reduction. If an operation of this library reduces it, it travels as its bits. Signed integers are
/// added and multiplied as unsigned ones, because these wrap.
template <element T>
MPI_Datatype value_type() noexcept
{
    if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
    else if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
    else return bits_type<T>();
}

/// An operation of this library's arithmetic: the same hop as `local` makes. It lives as long as MPI.
template <element T, reduction operation>
MPI_Op own_operation()
{
    static const MPI_Op created = [] {
        MPI_Op made = MPI_OP_NULL;
        const auto apply = [](void* in, void* in_out, int* count, MPI_Datatype*) {
            collprobe::detail::combine(operation, static_cast<T*>(in_out), static_cast<const T*>(in), *count);
        };
        require(MPI_Op_create(apply, 1, &made), "MPI_Op_create");
        return made;
    }();
    return created;
}

/// Whether `operation` is one of this library's. MPI has no floating point of 8 or 16 bits, and does not define the
/// minimum of a NaN and a number (here the number). For integers, Open MPI 4.1 saturates sums of 8 bits (in its
/// vector code), and MPICH 4.0 compares unsigned values as if they were signed.
template <element T>
constexpr bool takes_own_operation(reduction operation) noexcept
{
    return sizeof(T) <= 2 || operation == reduction::min || operation == reduction::max;
}

/// MPI's operation for `operation` on T.
/// \throws refusal
template <element T>
MPI_Op operation_of(reduction operation)
{
    const auto choose = [&]<reduction own>(MPI_Op of_mpi) {
        if constexpr (takes_own_operation<T>(own)) return own_operation<T, own>();
        else return of_mpi;
    };
    switch (operation) {
    case reduction::sum:
    case reduction::average: return choose.template operator()<reduction::sum>(MPI_SUM);
    case reduction::min: return choose.template operator()<reduction::min>(MPI_MIN);
    case reduction::max: return choose.template operator()<reduction::max>(MPI_MAX);
    case reduction::product: return choose.template operator()<reduction::product>(MPI_PROD);
    }
    return MPI_OP_NULL;
}

/// `count` elements as one, for a count that does not fit into an `int`: blocks of `limit` and a rest.
class large_type {
public:
    /// \throws refusal
    large_type(MPI_Datatype of, int bytes, std::uint64_t count, std::uint64_t limit)
    {
        MPI_Datatype block = MPI_DATATYPE_NULL;
        require(MPI_Type_contiguous(static_cast<int>(limit), of, &block), "MPI_Type_contiguous");
        const std::uint64_t blocks = count / limit;
        const int lengths[] = {static_cast<int>(blocks), static_cast<int>(count % limit)};
        const MPI_Aint places[] = {0, static_cast<MPI_Aint>(blocks * limit) * bytes};
        const MPI_Datatype types[] = {block, of};
        const int made = MPI_Type_create_struct(2, lengths, places, types, &type_);
        MPI_Type_free(&block);
        require(made, "MPI_Type_create_struct");
        require(MPI_Type_commit(&type_), "MPI_Type_commit");
    }
    large_type(const large_type&) = delete;
    large_type& operator=(const large_type&) = delete;
    ~large_type() { MPI_Type_free(&type_); }

    MPI_Datatype get() const noexcept { return type_; }

private:
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

} // namespace collprobe::mpi::detail
