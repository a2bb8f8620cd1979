/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * What both families share: verdict bytes, the frontend value, the node's settings and the counters.
 * The layout of every key and value is an interface with _ebpf/layout.py. A change raises SCHEMA there, which moves
 * the pins to another directory, so old and new maps never meet. Padding is written out: a key with implicit padding
 * loads and then never matches.
 */
#pragma once

#include "hash.h"

/* Who dials. The index of frontend_value.answer. */
enum client {
	CLIENT_OUTSIDER = 0,
	CLIENT_POD = 1,
	CLIENT_NODE = 2,
	CLIENTS = 3,
};

/* The answer to one kind of client: verdict in bits 0-1, then flags. */
enum answer {
	VERDICT_MASK = 0x03,
	VERDICT_DNAT = 0,
	VERDICT_REJECT = 1,
	VERDICT_DROP = 2,
	VERDICT_ELSEWHERE = 3,		/* carried by the node's nftables tables */
	LOCAL_ONLY = 0x04,		/* the endpoint set of the Local policy */
	MASQUERADE = 0x08,		/* the endpoint sees an address of this node */
};

enum frontend_flag {
	FRONTEND_AFFINITY = 0x01,	/* pins in affinity4/6 under .service */
	FRONTEND_RANGES = 0x02,		/* only sources in ranges4/6 under .service */
	FRONTEND_REFUSE_LOOPBACK = 0x04,	/* a NodePort that loopback addresses refuse (KEP-6032) */
	FRONTEND_MAGLEV = 0x08,		/* the flow's hash chooses, by the set's table in tables4/6 */
};

/*
 * .service is the number of the service port. It names two endpoint sets (see set_number), the pins and the source
 * ranges; all frontends of a service port share it. Slots 0..count-1 of a set are filled.
 */
struct frontend_value {
	__u32 service;
	__u32 count_cluster;
	__u32 count_local;
	__u32 affinity_seconds;
	__u8 answer[CLIENTS];
	__u8 flags;
};

INLINE __u32 set_number(__u32 service, bool local_only)
{
	return service << 1 | local_only;
}

struct slot_key {
	__u32 set;
	__u32 slot;
};

/* Entries of a Maglev table, 0: none are made. Set by the loader, which sizes the values of tables4/6 for it. */
const volatile __u32 table_size SEC(".rodata") = 0;

/* Maglev: which slot a hash falls to. A table of another moment names a slot of the same set, or one that is gone. */
struct table {
	__u64 inputs;			/* digest of what it was made from; user space only */
	__u16 slot[];			/* table_size of them */
};

enum endpoint_flag {
	ENDPOINT_LOCAL = 0x01,		/* a pod of this node: hairpin is possible */
};

/* One value, index 0. User space replaces it as a whole; programs read single fields. */
struct settings {
	__u64 host_netns;		/* cookie of the node's network namespace */
	__u32 flags;
	__u32 next_service;		/* numbers below are or were in use; user space only */
	__u32 node4[1];			/* masquerade to this address; 0: masquerade impossible */
	__u32 node6[4];
	__u32 pad;
};

enum settings_flag {
	HOST_ONLY = 0x01,		/* sockets of pod namespaces are left to the packet path */
	PROTECT_NODE_PORTS = 0x02,	/* refuse bind() of host processes to a NodePort */
	DRAINING = 0x08,		/* another backend serves now: only flows that exist are translated */
	POD_BY_LINK = 0x04,		/* a pod is told by the arriving interface, not by its address */
	DSR_OPTION = 0x10,		/* outsiders keep their address: the frontend travels as an IP option */
	DSR_TUNNEL = 0x20,		/* the same, by another IP header in front (IPIP, IP6IP6) */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* Why a packet or a call was not served. Names are in _ebpf/layout.py. */
enum reason {
	REASON_NO_ENDPOINT = 0,
	REASON_NO_LOCAL_ENDPOINT,
	REASON_UNDEFINED_PORT,
	REASON_UNUSED_CLUSTER_IP,
	REASON_SOURCE_RANGE,
	REASON_NO_SNAT_PORT,
	REASON_FLOW_TABLE_FULL,
	REASON_MISSING_SLOT,
	REASON_NODE_PORT_BIND,
	REASON_MALFORMED,
	REASON_DSR_MASQUERADED,		/* served, but masqueraded where direct return was asked for */
	REASON_DSR_TOO_LONG,
	REASON_DSR_UNKNOWN,		/* came from another node for an endpoint that is none here */
	REASON_REFUSAL_LIMIT,		/* refused, but in silence: there have been too many */
	REASON_UNANSWERABLE,		/* refused, but in silence: no error may be sent about it (RFC 1122, 3.2.2) */
	REASONS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

INLINE void count_reason(__u32 reason)
{
	__u64 *counter = bpf_map_lookup_elem(&reasons, &reason);

	if (counter)
		*counter += 1;
}

INLINE const struct settings *node_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_ICMP6 58
#define PROTOCOL_SCTP 132

/* The two families are one text: NAME(x) is x4 or x6. Headers named *_family.h are included once for each. */
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(x) JOIN(x, FAMILY)
