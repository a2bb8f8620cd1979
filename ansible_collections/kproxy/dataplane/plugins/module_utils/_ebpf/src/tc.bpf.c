/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * The packet path: both directions of every device of the node, for connections that no socket of this node's cgroup
 * made. Packets that are not ours leave with TC_ACT_UNSPEC: from tcx, TC_ACT_OK would skip the clsact filters of others.
 *
 * A refusal is answered by the node: the packet gets settings.refuse_mark, and one static rule of table kproxy-ebpf
 * rejects marked packets after routing, with the kernel's own rate limits and checksums.
 */
#include "packet.h"

#define NOT_OURS (-1)			/* TC_ACT_UNSPEC */
#define SHOT 2				/* TC_ACT_SHOT */

#define HOOK_INGRESS 0
#define HOOK_EGRESS 1

#define FLOW_FORWARD 0x01		/* from the client's side */
#define FLOW_CLOSING 0x02		/* FIN or RST seen: may go after a short while */

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

INLINE __be16 snat_port(void)
{
	return bpf_htons(SNAT_FIRST + bpf_get_prandom_u32() % SNAT_PORTS);
}

INLINE int drop(__u32 reason)
{
	count_reason(reason);
	return SHOT;
}

INLINE int refuse(struct __sk_buff *skb, const struct settings *node, __u32 reason)
{
	count_reason(reason);
	if (!node->refuse_mark)
		return SHOT;
	skb->mark |= node->refuse_mark;
	return NOT_OURS;
}

#define FAMILY 4
#define WORDS 1
#define PROTOCOL_ICMP_OF_FAMILY PROTOCOL_ICMP
#define ICMP_ECHO_OF_FAMILY 8
#define ICMP_IS_ERROR(type) ((type) == 3 || (type) == 11 || (type) == 12)
#define ICMP_INNER_CSUM(csum) 0
#define ICMP_OUTER_CSUM(csum) 0
#include "maps_family.h"
#include "select_family.h"
#include "packet_family.h"
#include "flow_family.h"
#undef FAMILY
#undef WORDS
#undef PROTOCOL_ICMP_OF_FAMILY
#undef ICMP_ECHO_OF_FAMILY
#undef ICMP_IS_ERROR
#undef ICMP_INNER_CSUM
#undef ICMP_OUTER_CSUM
#define FAMILY 6
#define WORDS 4
#define PROTOCOL_ICMP_OF_FAMILY PROTOCOL_ICMP6
#define ICMP_ECHO_OF_FAMILY 128
#define ICMP_IS_ERROR(type) ((type) < 128)
#define ICMP_INNER_CSUM(csum) (csum)
#define ICMP_OUTER_CSUM(csum) (csum)
#include "maps_family.h"
#include "select_family.h"
#include "packet_family.h"
#include "flow_family.h"

INLINE int handle(struct __sk_buff *skb, __u8 hook)
{
	switch (skb->protocol) {
	case bpf_htons(ETHERTYPE_IPV4):
		return handle4(skb, hook);
	case bpf_htons(ETHERTYPE_IPV6):
		return handle6(skb, hook);
	default:
		return NOT_OURS;
	}
}

SEC("tcx/ingress")
int kp_ingress(struct __sk_buff *skb)
{
	return handle(skb, HOOK_INGRESS);
}

SEC("tcx/egress")
int kp_egress(struct __sk_buff *skb)
{
	return handle(skb, HOOK_EGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
