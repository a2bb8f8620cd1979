# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE: this fragment may change at any time; nothing outside this collection may use it.

from __future__ import annotations


class ModuleDocFragment:
    """The option that the modules about residue share."""

    DOCUMENTATION = r"""
options:
  node_ports:
    description:
      - NodePorts of services known to the API server, as C(31190/tcp).
      - An IPVS virtual server on a node address is kube-proxy's only when its port is listed here; otherwise it counts
        as foreign and is left alone.
    type: list
    elements: str
    default: []
"""
