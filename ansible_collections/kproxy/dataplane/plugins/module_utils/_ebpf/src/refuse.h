/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* What both families share of refusals: how many, how much is quoted, and checksums that somebody else may finish. */
#pragma once

#include "flow.h"

#include <linux/if_packet.h>

#define REFUSAL_TTL 64

/*
 * Bytes quoted from behind the IP header. RFC 792 asks for 8. A packet whose checksum is left to hardware cannot be cut
 * before the end of its checksum field, so TCP and SCTP are quoted with their whole header.
 */
#define QUOTED_BYTES 8
#define QUOTED_BYTES_TCP 20
#define QUOTED_BYTES_SCTP 12

/*
 * Each processor answers this many refused packets per second, and REFUSAL_BURST at once: as the kernel limits such errors
 * (icmp_msgs_per_sec), so that nobody can be flooded from here by packets in his name.
 */
#define REFUSALS_PER_SECOND 1000
#define REFUSAL_BURST 100
#define REFUSAL_NS (1000000000ULL / REFUSALS_PER_SECOND)

/* The moment up to which refusals have been paid for (CLOCK_MONOTONIC, ns): a bucket is full when it is a burst ago. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} refusals SEC(".maps");

INLINE bool pay_for_refusal(void)
{
	__u64 now = bpf_ktime_get_ns(), full = now - REFUSAL_BURST * REFUSAL_NS;
	__u32 zero = 0;
	__u64 *paid = bpf_map_lookup_elem(&refusals, &zero);

	if (!paid || *paid > now - REFUSAL_NS)
		return false;
	*paid = (*paid < full ? full : *paid) + REFUSAL_NS;
	return true;
}

/*
 * The sender of a packet may have left its checksum c to hardware (veth, virtio), and no program can tell. Whoever
 * completes it on the way back writes ~(rest + c) over the field, which now lies in the quote, and the checksum of the
 * error would be wrong. So the field is quoted with the one value that completing gives again: c = ~(rest + c) in
 * one's complement, where doubling is a rotation, hence c = ~rest rotated right by one. No receiver reads this field.
 */
INLINE void settle_csum(__u8 *segment, __u32 field)
{
	__u16 *csum = (__u16 *)(segment + field), rest;

	*csum = 0;
	rest = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)segment, QUOTED_BYTES_TCP, 0));
	*csum = rest >> 1 | rest << 15;
}

/* Address the frame to whom it came from. False: its link header cannot be read. */
INLINE bool send_back(struct __sk_buff *skb)
{
	__u8 ends[2 * ETH_ALEN], turned[2 * ETH_ALEN];

	if (!link_header)
		return true;
	if (bpf_skb_load_bytes(skb, 0, ends, sizeof(ends)))
		return false;
	__builtin_memcpy(turned, ends + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(turned + ETH_ALEN, ends, ETH_ALEN);
	return !bpf_skb_store_bytes(skb, 0, turned, sizeof(turned), 0);
}
