# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""One kproxyd for each state directory: two would write the same tables or maps, each by books of its own.

The lock is on the directory because nobody else may open that, as anybody may a name of the network namespace.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import folder_lock

LOG = logging.getLogger("kproxyd")
#: One that was killed may have left a child, which has the lock until it ends.
PATIENCE_SECONDS = 5.0


class AnotherRuns(Exception):
    """Another kproxyd keeps the Services of this node."""


@contextlib.contextmanager
def only_kproxyd(state_directory: str) -> Iterator[None]:
    """Be the only one meanwhile. Raises AnotherRuns. Where the directory cannot be opened, nothing is kept away."""
    with contextlib.ExitStack() as held:
        try:
            os.makedirs(state_directory, mode=0o750, exist_ok=True)
            held.enter_context(folder_lock.locked(state_directory, PATIENCE_SECONDS))
        except TimeoutError as error:
            raise AnotherRuns(
                "another kproxyd runs; end it first (systemctl stop kproxyd, where it is the service): %s" % error
            ) from None
        except OSError as error:
            LOG.warning("another kproxyd would not be noticed: %s", error)
        yield
