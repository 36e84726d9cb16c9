// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the target docs must refuse.
namespace collprobe::inline COLLPROBE_ABI {

/// Names a parameter that there is not.
/// \param missing of nothing
inline int documented_wrongly(int present) { return present; }

} // namespace collprobe
