# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kproxyctl's exit codes, for scripts."""

from __future__ import annotations

OK = 0
# The question was answered and the answer is bad news: not in step, differences found, unknown Service.
PROBLEM = 1
# The command line makes no sense (argparse's own code).
USAGE = 2
# kproxyd does not answer; what is programmed keeps forwarding.
NO_DAEMON = 3
