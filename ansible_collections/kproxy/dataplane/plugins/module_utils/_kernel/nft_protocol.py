# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of the nf_tables netlink protocol (include/uapi/linux/netfilter/nf_tables.h, nfnetlink.h)."""

from __future__ import annotations

import struct

SUBSYSTEM = 10
BATCH_BEGIN = 16
BATCH_END = 17

NEWTABLE, GETTABLE, DELTABLE = 0, 1, 2
NEWCHAIN, GETCHAIN, DELCHAIN = 3, 4, 5
NEWRULE, GETRULE, DELRULE = 6, 7, 8
NEWSET, GETSET, DELSET = 9, 10, 11
NEWSETELEM, GETSETELEM, DELSETELEM = 12, 13, 14
NEWGEN, GETGEN = 15, 16
NEWOBJ, GETOBJ, DELOBJ, GETOBJ_RESET = 18, 19, 20, 21
NEWFLOWTABLE, GETFLOWTABLE, DELFLOWTABLE = 22, 23, 24
DESTROYSETELEM = 30  # from Linux 6.3: a delete that a missing element does not fail

#: The multicast group of ruleset changes.
NFNLGRP_NFTABLES = 7

TABLE_NAME, TABLE_FLAGS = 1, 2

CHAIN_TABLE, CHAIN_HANDLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_USE, CHAIN_TYPE = 1, 2, 3, 4, 5, 6, 7
CHAIN_FLAGS, CHAIN_USERDATA = 10, 12
HOOK_NUMBER, HOOK_PRIORITY = 1, 2

RULE_TABLE, RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS, RULE_POSITION, RULE_USERDATA = 1, 2, 3, 4, 6, 7

SET_TABLE, SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_LEN, SET_DATA_TYPE, SET_DATA_LEN = 1, 2, 3, 4, 5, 6, 7
SET_POLICY, SET_DESC, SET_TIMEOUT, SET_GC_INTERVAL, SET_USERDATA = 8, 9, 11, 12, 13
SET_EXPRESSION, SET_EXPRESSIONS = 17, 18
SET_FLAG_ANONYMOUS, SET_FLAG_EVAL = 0x1, 0x20  # EVAL: packets add to it

ELEM_LIST_TABLE, ELEM_LIST_SET, ELEM_LIST_ELEMENTS = 1, 2, 3
ELEM_KEY, ELEM_DATA, ELEM_FLAGS, ELEM_TIMEOUT, ELEM_EXPIRATION, ELEM_USERDATA = 1, 2, 3, 4, 5, 6
ELEM_KEY_END = 10
ELEM_FLAG_INTERVAL_END = 0x1
LIST_ELEM = 1
DATA_VALUE, DATA_VERDICT = 1, 2
VERDICT_CODE, VERDICT_CHAIN = 1, 2

GEN_ID, GEN_PROC_PID, GEN_PROC_NAME = 1, 2, 3

EXPR_NAME, EXPR_DATA = 1, 2
LOOKUP_SET, DYNSET_SET_NAME, QUOTA_CONSUMED = 1, 1, 4
CMP_DATA, COUNTER_PACKETS = 3, 2

VERDICT_CODES: dict[str, int] = {"drop": 0, "accept": 1, "return": -5, "jump": -3, "goto": -4}
VERDICT_NAMES: dict[int, str] = {code: name for name, code in VERDICT_CODES.items()}

#: NFPROTO_IPV4 and NFPROTO_IPV6 by our family numbers, and back.
NFPROTO: dict[int, int] = {4: 2, 6: 10}
FAMILY_OF_NFPROTO: dict[int, int] = {2: 4, 10: 6}
FAMILY_WORD: dict[int, str] = {4: "ip", 6: "ip6"}

NFGENMSG = struct.Struct(">BBH")


def message_type(operation: int) -> int:
    """Return the netlink message type of an nf_tables operation."""
    return SUBSYSTEM << 8 | operation


def nfgenmsg(family: int, resource: int = 0) -> bytes:
    """Return the netfilter header for our family number (4 or 6; 0 for none)."""
    return NFGENMSG.pack(NFPROTO.get(family, 0), 0, resource)
