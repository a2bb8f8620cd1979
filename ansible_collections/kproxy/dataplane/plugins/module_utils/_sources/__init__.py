# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

Where a module's Kubernetes objects come from: one complete reading of the API server, of manifests or of given values.
Watching is the sidecar's business. ``api_server`` talks through Ansible's own URL library, everything else is plain.
"""
