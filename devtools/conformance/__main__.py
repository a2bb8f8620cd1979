"""``python -m devtools.conformance``."""

from __future__ import annotations

import sys

from devtools.conformance import main

sys.exit(main(sys.argv[1:]))
