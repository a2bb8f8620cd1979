# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE: this fragment may change at any time; nothing outside this collection may use it.

from __future__ import annotations


class ModuleDocFragment:
    """Options shared by the modules that read a cluster's objects or plan a node's service table."""

    NODE = r"""
options:
  node_name:
    description:
      - Name of the Node object that stands for the machine the module runs on.
      - Decides which endpoints are local, which hints apply and which addresses accept NodePorts.
      - When not given, the machine's host name. Either is taken in lower case, as names of Nodes are.
    type: str
  config:
    description:
      - Settings under the names that C(KubeProxyConfiguration) (C(kubeproxy.config.k8s.io/v1alpha1)) gives them,
        for example C(clusterCIDR), C(detectLocalMode), C(nodePortAddresses) or C(nftables).
      - Keys that have no meaning here are reported as warnings, keys with bad values fail the module.
    type: dict
    default: {}
"""

    SOURCE = r"""
options:
  objects:
    description:
      - Kubernetes objects, as the API server would return them. Lists (C(List), C(ServiceList) and so on) are unrolled.
      - C(Service), C(EndpointSlice), C(Node) and C(ServiceCIDR) are used; objects of other kinds are ignored.
      - Exactly one of O(objects), O(manifests) and O(api_servers) or O(kubeconfig) or O(kubeconfig_data) says where the
        objects come from.
    type: list
    elements: dict
  manifests:
    description:
      - A file, or a folder whose C(*.yaml), C(*.yml) and C(*.json) files are read in the order of their names.
      - Looked up on the controller unless O(remote_src=true).
      - On a node JSON can always be read, YAML only where the node's Python has PyYAML.
      - A file that cannot be parsed fails the module before anything is written, because what it should have held
        is unknown.
    type: path
  remote_src:
    description:
      - Whether O(manifests) is a path on the node.
    type: bool
    default: false
  api_servers:
    description:
      - URLs of the API server, tried in order until one answers.
      - Give real addresses, never the C(kubernetes) Service, which does not work before this collection has
        programmed it.
    type: list
    elements: str
  kubeconfig:
    description:
      - A kubeconfig file on the node that says where the API server is and how to authenticate; its current context
        is used.
      - May be written in JSON, or in YAML where the node's Python has PyYAML.
      - The options O(api_servers), O(ca_cert), O(client_cert), O(client_key), O(token) and O(token_file) win over
        what it says.
    type: path
  kubeconfig_data:
    version_added: 1.1.0
    description:
      - What a kubeconfig says, instead of a file on the node. Nothing of it is left on the node, so that a kubeconfig
        that a play is about to write can be used in check mode.
    type: json
  ca_cert:
    description:
      - File on the node with the certificates that the API server's certificate is checked against.
    type: path
  client_cert:
    description:
      - File on the node with the client certificate, in PEM form. May hold the key as well.
    type: path
  client_key:
    description:
      - File on the node with the key of O(client_cert).
    type: path
  token:
    description:
      - Bearer token. Prefer O(token_file), which never leaves the node.
    type: str
  token_file:
    description:
      - File on the node that holds the bearer token.
    type: path
  api_timeout:
    description:
      - Seconds to wait for one answer of the API server before the next URL is tried.
    type: int
    default: 15
"""
