# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""``python -m kvxfer``: the command line where the console script is not on the path."""

import sys

from kvxfer.cli import main

if __name__ == "__main__":
    sys.exit(main())
