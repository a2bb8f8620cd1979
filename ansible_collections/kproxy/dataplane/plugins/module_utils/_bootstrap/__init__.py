# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

A cluster that never gets kube-proxy: kubeadm's and kubelet's configuration documents amended, and checks that nothing
needs a Service before Services work. Pure; documents go in as parsed YAML and come out as values.
"""
