"""A stand-in for kube-proxy on lab nodes: its DaemonSet in an API server, its rules in the kernel, its process.

What migrations are tried against: the rules have kube-proxy's shape in each of its modes and stay when the process
ends; the process runs on a node as long as the DaemonSet selects it.
"""
