/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* What both families share of the flow table: hooks, flags, source ports, and what can become of a new connection. */
#pragma once

#include "blocks.h"
#include "filter.h"
#include "packet.h"

#define HOOK_INGRESS 0
#define HOOK_EGRESS 1

enum flow_flag {
	FLOW_FORWARD = 0x01,		/* from the client's side */
	FLOW_CLOSING = 0x02,		/* FIN or RST seen: may go after a short while, with the other direction's */
	FLOW_TUNNEL = 0x04,		/* egress: goes to the endpoint's node inside another IP header (dsr_family.h) */
	FLOW_OPTION = 0x08,		/* egress: carries its frontend as an option (dsr_family.h) */
	FLOW_CLAMP = 0x10,		/* egress: comes in through a tunnel, so the client may send that much less at once */
	FLOW_UNANSWERED = 0x20,		/* egress, TCP: no SYN and no RST has come from the endpoint yet */
	FLOW_RESET = 0x40,		/* RST seen: neither side has anything more to say */
};

/*
 * Source ports of masqueraded connections: below the kernel's own ephemeral range (32768-60999) and the NodePorts
 * (30000-32767), so nobody else picks them. Per endpoint, protocol and node address: 13,616 connections at once.
 */
#define SNAT_FIRST 16384
#define SNAT_PORTS 13616
#define SNAT_TRIES 16

/* Interfaces that pods come in by, where detectLocalMode names interfaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} pod_links SEC(".maps");

/* What open_flow() has decided. A reason to count is added by because(). */
enum decision {
	DECIDED_NOT_OURS = 0,
	DECIDED_DIRECT,			/* no frontend; perhaps a direct connection to an endpoint */
	DECIDED_OPENED,			/* entered: the caller's tuple says where to */
	DECIDED_DROP,
	DECIDED_REFUSE,
	DECISION_MASK = 0xff,
};

INLINE __u32 because(enum decision decision, __u32 reason)
{
	return decision | reason << 8;
}

INLINE __u32 reason_of(__u32 decided)
{
	return decided >> 8;
}

/*
 * How a frontend travels to the endpoint's node. An IPv4 option: copied, class 0, number 26 (none is assigned), holding
 * the port and the address. An IPv6 destination option that is skipped by those who do not know it, padded to 24 bytes.
 * In a tunnel, the inner packet is the client's own; the endpoint's port is the outer header's datagram number (IPv4,
 * where DF makes it meaningless: RFC 6864) or flow label (IPv6).
 */
#define OPTION_BYTES (FAMILY == 4 ? 8 : 24)
#define TUNNEL_BYTES (FAMILY == 4 ? 20 : 40)
#define TUNNEL_TTL 64
#define OPTION4_KIND 0x9a
#define OPTION6_KIND 0x1b
#define PROTOCOL_IPIP 4
#define PROTOCOL_IPV6 41
#define PROTOCOL_OPTIONS6 60

struct option4 {
	__u8 kind;
	__u8 length;
	__be16 port;
	__u32 addr[1];
};

struct option6 {
	__u8 nexthdr;
	__u8 units;			/* of 8 bytes, without the first */
	__u8 kind;
	__u8 length;
	__u32 addr[4];
	__be16 port;
	__u8 pad_kind;			/* PadN */
	__u8 pad_length;
};

/* A packet says where its connection goes: the first of TCP, every one of UDP. */
INLINE bool carries_option(__u8 protocol, __u8 tcp_flags)
{
	return protocol != PROTOCOL_TCP || (tcp_flags & TCP_SYN);
}

/* What an entry's flags become by a SYN, FIN or RST: rarely met, so the packets between pay nothing for it. */
INLINE __u8 noted(__u8 flags, __u8 tcp_flags)
{
	if (tcp_flags & TCP_RST)
		flags |= FLOW_CLOSING | FLOW_RESET;
	else if (tcp_flags & TCP_FIN)
		flags |= FLOW_CLOSING;
	return flags & ~FLOW_UNANSWERED;
}

INLINE bool begins(__u8 protocol, __u8 tcp_flags)
{
	return protocol != PROTOCOL_TCP || (tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

INLINE __be16 snat_port(void)
{
	return bpf_htons(SNAT_FIRST + bpf_get_prandom_u32() % SNAT_PORTS);
}

INLINE __u16 fold_csum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}
