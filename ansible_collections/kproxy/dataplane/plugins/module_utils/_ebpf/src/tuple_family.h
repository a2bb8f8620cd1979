/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* A packet as the flow table sees it, for one family, whichever hook has read it. Included with FAMILY 4 and 6. */

struct NAME(tuple) {
	struct NAME(addr) src;
	struct NAME(addr) dst;
	__be16 sport;
	__be16 dport;
};

struct NAME(packet) {
	struct NAME(tuple) tuple;
	__u32 ip;			/* offset of the IP header */
	__u32 l4;			/* offset of the transport header */
	__u32 length;			/* bytes from the IP header on, as that header says */
	__u8 protocol;
	__u8 tcp_flags;
	__u8 icmp_type;
	bool later_fragment;		/* no transport header here */
	bool first_fragment;
	bool known;			/* the filter does not rule out an entry about its ends; tc only */
	__u32 fragment;			/* datagram number */
};

/* Headers are written through structs of their own, aligned for bpf_csum_diff(). */
struct NAME(ip_header) {
#if FAMILY == 4
	struct iphdr h;
#else
	struct ipv6hdr h;
#endif
} __attribute__((aligned(4)));

struct NAME(tunnel) {
#if FAMILY == 4
	struct iphdr ip;
#else
	struct ipv6hdr ip;
#endif
} __attribute__((aligned(4)));
