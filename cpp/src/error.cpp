// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/error.hpp"

namespace kvxfer {

// Out of line, so that each type has one home for its vtable and type information.
Error::~Error() = default;
InvalidArgumentError::~InvalidArgumentError() = default;
CapacityError::~CapacityError() = default;
UnsupportedError::~UnsupportedError() = default;

}  // namespace kvxfer
