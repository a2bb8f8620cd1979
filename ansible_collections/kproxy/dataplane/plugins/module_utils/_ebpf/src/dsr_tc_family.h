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

	if (!node || !has_check_mtu)
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

	if (!has_check_mtu || !carries_option(p->protocol, p->tcp_flags) || p->later_fragment || p->first_fragment ||
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

/* How a packet that another node sent on came, and what is left once that is taken off. */
struct NAME(sent_on) {
	struct NAME(endpoint) endpoint;
	struct NAME(ip_header) ip;	/* as it will be without the option */
	bool tunnel;
};

/* Make `p` the packet in the tunnel. */
INLINE bool NAME(read_tunnel)(struct __sk_buff *skb, struct NAME(packet) *p, struct NAME(sent_on) *sent)
{
	struct NAME(tunnel) outer;

	if (bpf_skb_load_bytes(skb, link_header, &outer, sizeof(outer)))
		return false;
#if FAMILY == 4
	if (outer.ip.ihl != 5 || (outer.ip.frag_off & bpf_htons(0x3fff)))
		return false;
	sent->endpoint.addr.w[0] = outer.ip.daddr;
	sent->endpoint.port = outer.ip.id;
#else
	__builtin_memcpy(&sent->endpoint.addr, &outer.ip.daddr, 16);
	sent->endpoint.port = bpf_htons(outer.ip.flow_lbl[1] << 8 | outer.ip.flow_lbl[2]);
#endif
	sent->tunnel = true;
	return NAME(read_packet)(skb, link_header + TUNNEL_BYTES, HOOK_INGRESS, p) &&
	       p->protocol != PROTOCOL_ICMP_OF_FAMILY;
}

/* Give `p`, whose ports are known, the frontend in the option, which is the first thing after the IP header. */
INLINE bool NAME(read_option)(struct __sk_buff *skb, struct NAME(packet) *p, struct NAME(sent_on) *sent)
{
	struct NAME(option) option;

	if (p->later_fragment || p->first_fragment || p->protocol == PROTOCOL_SCTP ||
	    bpf_skb_load_bytes(skb, p->ip + sizeof(sent->ip), &option, sizeof(option)) ||
	    bpf_skb_load_bytes(skb, p->ip, &sent->ip, sizeof(sent->ip)))
		return false;
#if FAMILY == 4
	if (option.kind != OPTION4_KIND || option.length != sizeof(option))
		return false;
	sent->ip.h.ihl -= sizeof(option) / 4;
	sent->ip.h.tot_len = bpf_htons(bpf_ntohs(sent->ip.h.tot_len) - sizeof(option));
	sent->ip.h.check = 0;
	sent->ip.h.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)&sent->ip, sizeof(sent->ip), 0));
#else
	if (option.kind != OPTION6_KIND || option.length != 18 || option.units != sizeof(option) / 8 - 1)
		return false;
	sent->ip.h.nexthdr = option.nexthdr;
	sent->ip.h.payload_len = bpf_htons(bpf_ntohs(sent->ip.h.payload_len) - sizeof(option));
#endif
	sent->endpoint.addr = p->tuple.dst;
	sent->endpoint.port = p->tuple.dport;
	__builtin_memcpy(&p->tuple.dst, option.addr, sizeof(option.addr));
	p->tuple.dport = option.port;
	return true;
}

/* Whether another node may have sent this packet on; if so, `p` is what the client made. `whole`: `p` has its ports. */
INLINE bool NAME(read_sent_on)(struct __sk_buff *skb, struct NAME(packet) *p, bool whole, struct NAME(sent_on) *sent)
{
	__builtin_memset(sent, 0, sizeof(*sent));
	if (!whole && p->protocol == PROTOCOL_TUNNEL_OF_FAMILY)
		return NAME(read_tunnel)(skb, p, sent);
#if FAMILY == 4
	return whole && p->l4 - p->ip == sizeof(sent->ip) + OPTION_BYTES && NAME(read_option)(skb, p, sent);
#else
	return !whole && p->protocol == PROTOCOL_OPTIONS6 && NAME(read_behind)(skb, p->l4 + OPTION_BYTES, p) &&
	       NAME(read_option)(skb, p, sent);
#endif
}

INLINE int NAME(receive)(struct __sk_buff *skb, struct NAME(packet) *p, const struct NAME(sent_on) *sent,
			 struct NAME(tuple) *forward)
{
	__u32 decided = NAME(accept_flow)(p, &sent->endpoint, sent->tunnel, forward);

	if ((decided & DECISION_MASK) == DECIDED_DROP)
		return drop(reason_of(decided));
	if ((decided & DECISION_MASK) != DECIDED_OPENED)
		return NOT_OURS;
	/* Segments of a large packet keep their size: it is only the header in front that goes. */
	if (!sent->tunnel) {
		if (bpf_skb_adjust_room(skb, -OPTION_BYTES, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO) ||
		    bpf_skb_store_bytes(skb, p->ip, &sent->ip, sizeof(sent->ip), 0))
			return drop(REASON_MALFORMED);
		return NOT_OURS;
	}
	if (bpf_skb_adjust_room(skb, -TUNNEL_BYTES, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return drop(REASON_MALFORMED);
	p->ip -= TUNNEL_BYTES;
	p->l4 -= TUNNEL_BYTES;
	return TRANSLATE;
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
