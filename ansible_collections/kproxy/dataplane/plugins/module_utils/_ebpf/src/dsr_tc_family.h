/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* Direct server return at tc, for one family. Included with FAMILY 4 and 6 after dsr_family.h. */

struct NAME(too_long) {
	struct NAME(ip_header) ip;
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 mtu;
	__u8 quoted[sizeof(struct NAME(ip_header)) + 8];
};

/*
 * Answer a packet that a tunnel cannot take with what a router says: the frontend asks the client for shorter ones.
 * `p` carries its frontend again.
 */
INLINE int NAME(refuse_length)(struct __sk_buff *skb, const struct NAME(packet) *p, const struct NAME(tuple) *to, __u32 mtu)
{
	const __u32 more = sizeof(struct NAME(too_long)) - sizeof(((struct NAME(too_long) *)0)->quoted);
	struct NAME(too_long) error;
	__u32 icmp = sizeof(error) - sizeof(error.ip);

	count_reason(REASON_DSR_TOO_LONG);
	__builtin_memset(&error, 0, sizeof(error));
	if (bpf_skb_load_bytes(skb, p->ip, error.quoted, sizeof(error.quoted)) ||
	    bpf_skb_change_tail(skb, p->ip + sizeof(error.quoted), 0) ||
	    bpf_skb_adjust_room(skb, more, BPF_ADJ_ROOM_MAC, 0))
		return SHOT;
#if FAMILY == 4
	error.type = 3;			/* destination unreachable, fragmentation needed */
	error.code = 4;
	error.mtu = bpf_htonl(mtu);
	error.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)&error.type, icmp, 0));
	error.ip.h.version = 4;
	error.ip.h.ihl = 5;
	error.ip.h.tot_len = bpf_htons(sizeof(error));
	error.ip.h.ttl = TUNNEL_TTL;
	error.ip.h.protocol = PROTOCOL_ICMP;
	error.ip.h.saddr = to->dst.w[0];
	error.ip.h.daddr = to->src.w[0];
	error.ip.h.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)&error.ip, sizeof(error.ip), 0));
#else
	error.type = 2;			/* packet too big */
	error.mtu = bpf_htonl(mtu);
	error.ip.h.version = 6;
	error.ip.h.payload_len = bpf_htons(icmp);
	error.ip.h.nexthdr = PROTOCOL_ICMP6;
	error.ip.h.hop_limit = TUNNEL_TTL;
	__builtin_memcpy(&error.ip.h.saddr, &to->dst, 16);
	__builtin_memcpy(&error.ip.h.daddr, &to->src, 16);
	{
		__be32 pseudo[2] = { bpf_htonl(icmp), bpf_htonl(PROTOCOL_ICMP6) };

		error.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)&error.type, icmp,
			bpf_csum_diff(NULL, 0, (__be32 *)&error.ip.h.saddr, 32,
				      bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0))));
	}
#endif
	if (bpf_skb_store_bytes(skb, p->ip, &error, more, 0))
		return SHOT;
	return bpf_redirect_neigh(skb->ingress_ifindex, NULL, 0, 0);
}

INLINE int NAME(send_by_tunnel)(struct __sk_buff *skb, const struct NAME(packet) *p, const struct NAME(tuple) *to)
{
	const struct settings *node = node_settings();
	struct NAME(tunnel) outer;
	struct NAME(addr) own;
	__u32 mtu = 0;

	if (!node)
		return NOT_OURS;
	NAME(rewrite)(skb, p, to);
	if (bpf_check_mtu(skb, 0, &mtu, TUNNEL_BYTES, 0))
		return NAME(refuse_length)(skb, p, to, mtu - TUNNEL_BYTES);
	NOINLINE_COPY(&own.w, &node->NAME(node));
	NAME(tunnel_header)(&outer, &own, &p->tuple, p->length);
	if (bpf_skb_adjust_room(skb, TUNNEL_BYTES, BPF_ADJ_ROOM_MAC, TUNNEL_ROOM) ||
	    bpf_skb_store_bytes(skb, p->ip, &outer, sizeof(outer), 0))
		return drop(REASON_MALFORMED);
	return NOT_OURS;
}

/* A datagram that has no room for the option goes without: the endpoint's node knows it from the first one. */
INLINE int NAME(send_by_option)(struct __sk_buff *skb, const struct NAME(packet) *p, const struct NAME(tuple) *to)
{
	struct NAME(option) option;
	struct NAME(ip_header) ip;
	__u32 mtu = 0;

	if (!carries_option(p->protocol, p->tcp_flags) || p->later_fragment || p->first_fragment ||
	    p->l4 - p->ip != sizeof(ip) || bpf_check_mtu(skb, 0, &mtu, OPTION_BYTES, 0) ||
	    bpf_skb_load_bytes(skb, p->ip, &ip, sizeof(ip)))
		return NOT_OURS;
	NAME(option_header)(&option, &ip, to);
	if (bpf_skb_adjust_room(skb, OPTION_BYTES, BPF_ADJ_ROOM_NET, 0))
		return NOT_OURS;
	if (bpf_skb_store_bytes(skb, p->ip, &ip, sizeof(ip), 0) ||
	    bpf_skb_store_bytes(skb, p->ip + sizeof(ip), &option, sizeof(option), 0))
		return drop(REASON_MALFORMED);
	return NOT_OURS;
}

INLINE int NAME(after_accepting)(__u32 decided)
{
	return (decided & DECISION_MASK) == DECIDED_DROP ? drop(reason_of(decided)) : NOT_OURS;
}

INLINE int NAME(receive_tunnel)(struct __sk_buff *skb)
{
	struct NAME(endpoint) endpoint;
	struct NAME(tuple) forward;
	struct NAME(tunnel) outer;
	struct NAME(packet) p;
	__u32 decided;

	__builtin_memset(&endpoint, 0, sizeof(endpoint));
	if (bpf_skb_load_bytes(skb, link_header, &outer, sizeof(outer)))
		return NOT_OURS;
#if FAMILY == 4
	if (outer.ip.ihl != 5 || (outer.ip.frag_off & bpf_htons(0x3fff)))
		return NOT_OURS;
	endpoint.addr.w[0] = outer.ip.daddr;
	endpoint.port = outer.ip.id;
#else
	__builtin_memcpy(&endpoint.addr, &outer.ip.daddr, 16);
	endpoint.port = bpf_htons(outer.ip.flow_lbl[1] << 8 | outer.ip.flow_lbl[2]);
#endif
	if (!NAME(read_packet)(skb, link_header + TUNNEL_BYTES, HOOK_INGRESS, &p) ||
	    p.protocol == PROTOCOL_ICMP_OF_FAMILY)
		return NOT_OURS;
	decided = NAME(accept_flow)(&p, &endpoint, true, &forward);
	if ((decided & DECISION_MASK) != DECIDED_OPENED)
		return NAME(after_accepting)(decided);
	/* Segments of a large packet keep their size: it is only the header in front that goes. */
	if (bpf_skb_adjust_room(skb, -TUNNEL_BYTES, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return drop(REASON_MALFORMED);
	p.ip -= TUNNEL_BYTES;
	p.l4 -= TUNNEL_BYTES;
	NAME(rewrite)(skb, &p, &forward);
	return NOT_OURS;
}

/* `p` has its ports already; the option is the first thing after the IP header. False: the packet has none of ours. */
INLINE bool NAME(receive_option)(struct __sk_buff *skb, struct NAME(packet) *p, int *result)
{
	struct NAME(endpoint) endpoint;
	struct NAME(option) option;
	struct NAME(ip_header) ip;
	struct NAME(tuple) forward;
	__u32 decided;

	if (p->later_fragment || p->first_fragment || p->protocol == PROTOCOL_SCTP ||
	    bpf_skb_load_bytes(skb, p->ip + sizeof(ip), &option, sizeof(option)) ||
	    bpf_skb_load_bytes(skb, p->ip, &ip, sizeof(ip)))
		return false;
#if FAMILY == 4
	if (option.kind != OPTION4_KIND || option.length != sizeof(option))
		return false;
	ip.h.ihl -= sizeof(option) / 4;
	ip.h.tot_len = bpf_htons(bpf_ntohs(ip.h.tot_len) - sizeof(option));
	ip.h.check = 0;
	ip.h.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
#else
	if (option.kind != OPTION6_KIND || option.length != 18 || option.units != sizeof(option) / 8 - 1)
		return false;
	ip.h.nexthdr = option.nexthdr;
	ip.h.payload_len = bpf_htons(bpf_ntohs(ip.h.payload_len) - sizeof(option));
#endif
	__builtin_memset(&endpoint, 0, sizeof(endpoint));
	endpoint.addr = p->tuple.dst;
	endpoint.port = p->tuple.dport;
	__builtin_memcpy(&p->tuple.dst, option.addr, sizeof(option.addr));
	p->tuple.dport = option.port;
	decided = NAME(accept_flow)(p, &endpoint, false, &forward);
	*result = NAME(after_accepting)(decided);
	if ((decided & DECISION_MASK) == DECIDED_OPENED &&
	    (bpf_skb_adjust_room(skb, -OPTION_BYTES, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	     bpf_skb_store_bytes(skb, p->ip, &ip, sizeof(ip), 0)))
		*result = drop(REASON_MALFORMED);
	return true;
}

/* Tell the client to leave room for the tunnel: the segment size that an endpoint announces loses a header. */
INLINE void NAME(clamp_segments)(struct __sk_buff *skb, const struct NAME(packet) *p)
{
	struct {
		__u8 kind;
		__u8 length;
		__be16 bytes;
	} option;
	__u8 words;
	__be16 less;

	/* Every stack of today puts this option first. */
	if (bpf_skb_load_bytes(skb, p->l4 + 12, &words, sizeof(words)) || words >> 4 < 6 ||
	    bpf_skb_load_bytes(skb, p->l4 + 20, &option, sizeof(option)) || option.kind != 2 || option.length != 4 ||
	    bpf_ntohs(option.bytes) < 500)
		return;
	less = bpf_htons(bpf_ntohs(option.bytes) - TUNNEL_BYTES);
	NAME(set_port)(skb, p->l4 + 22, option.bytes, less, p->l4 + TCP_CSUM_OFFSET, 0);
}
