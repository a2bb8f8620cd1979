/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* What tc does with one packet, for one family. Included with FAMILY 4 and 6 after open_family.h. */

/*
 * The first packet to an endpoint itself. A client port that reached this endpoint through a frontend before left entries
 * that would take the new connection's packets for their own: ended ones are removed; beside a live one, the new
 * connection gets another source port.
 */
INLINE int NAME(open_direct)(const struct NAME(packet) *p, struct NAME(tuple) *forward)
{
	const struct NAME(flow_value) *there, *back;
	struct NAME(flow_key) key;
	bool taken;

	if (!p->known)
		return NOT_OURS;
	there = NAME(peek_flow)(p, &p->tuple);
	__builtin_memset(&key, 0, sizeof(key));
	NAME(turn_round)(&key.tuple, &p->tuple);
	key.protocol = p->protocol;
	key.hook = HOOK_EGRESS;
	back = bpf_map_lookup_elem(&NAME(flows), &key);
	if (there && !(there->flags & (FLOW_TUNNEL | FLOW_OPTION)))
		there = NULL;
	if (!there && !back)
		return NOT_OURS;
	taken = there && !(there->flags & FLOW_CLOSING);
	if (!taken && (!back || (back->flags & FLOW_CLOSING))) {
		bpf_map_delete_elem(&NAME(flows), &key);
		NAME(forget_masquerade)(p, &p->tuple);
		return NOT_OURS;
	}
	/* Direct return leaves nothing on the way back that would show it. */
	*forward = p->tuple;
	if (taken)
		forward->sport = snat_port();
	if (!NAME(enter_reply)(p, forward, 0, 0))
		return drop(REASON_NO_SNAT_PORT);
	if (!NAME(enter_forward)(p, forward, 0))
		return drop(REASON_FLOW_TABLE_FULL);
	return TRANSLATE;
}

/* Packets of the node's own sockets that the socket programs left alone: what must be silent is silenced here. */
INLINE int NAME(own_packet)(const struct NAME(packet) *p)
{
	const struct settings *node = node_settings();
	bool served = NAME(may_be_served)(&p->tuple.dst);
	const struct frontend_value *frontend;

	if (!node || (node->flags & DRAINING) || !begins(p->protocol, p->tcp_flags))
		return NOT_OURS;
	frontend = served ? NAME(exact_frontend)(&p->tuple.dst, p->tuple.dport, p->protocol) : NULL;
	if (frontend) {
		if ((frontend->answer[CLIENT_NODE] & VERDICT_MASK) == VERDICT_DROP)
			return drop(REASON_NO_LOCAL_ENDPOINT);
		if ((frontend->flags & FRONTEND_RANGES) && !NAME(in_ranges)(frontend, &p->tuple.src))
			return drop(REASON_SOURCE_RANGE);
		return NOT_OURS;
	}
	if (!(served && bpf_map_lookup_elem(&NAME(cluster_ips), &p->tuple.dst)) && NAME(in_service_range)(&p->tuple.dst))
		return drop(REASON_UNUSED_CLUSTER_IP);
	return NOT_OURS;
}

/*
 * An ICMP error quotes the packet it is about. The quoted packet, turned round, is a packet of the other direction; what
 * this hook does to that one tells what the quoted one looked like on the other side.
 */
INLINE int NAME(translate_error)(struct __sk_buff *skb, const struct NAME(packet) *p, __u8 hook)
{
	const struct NAME(flow_value) *flow;
	struct NAME(packet) inner;
	struct port_pair ports;
	struct NAME(flow_key) key;
	struct NAME(tuple) to;
	__u32 csum = p->l4 + ICMP_CSUM_OFFSET;

	if (!NAME(read_ip)(skb, p->l4 + ICMP_INNER_OFFSET, &inner) || inner.later_fragment)
		return NOT_OURS;
	if (inner.protocol != PROTOCOL_TCP && inner.protocol != PROTOCOL_UDP)
		return NOT_OURS;
	if (bpf_skb_load_bytes(skb, inner.l4, &ports, sizeof(ports)))
		return NOT_OURS;
	__builtin_memset(&key, 0, sizeof(key));
	key.tuple.src = inner.tuple.dst;
	key.tuple.dst = inner.tuple.src;
	key.tuple.sport = ports.dport;
	key.tuple.dport = ports.sport;
	key.protocol = inner.protocol;
	key.hook = hook;
	flow = bpf_map_lookup_elem(&NAME(flows), &key);
	/* Nothing was translated here of a packet that left with its frontend inside. */
	if (!flow || (flow->flags & (FLOW_TUNNEL | FLOW_OPTION)))
		return NOT_OURS;
	to = flow->to;

	/* IPv4: an inner address and the inner header's own checksum cancel out in the ICMP checksum. */
	NAME(set_addr)(skb, inner.ip, false, &inner.tuple.src, &to.dst, ICMP_INNER_CSUM(csum), 0);
	NAME(set_addr)(skb, inner.ip, true, &inner.tuple.dst, &to.src, ICMP_INNER_CSUM(csum), 0);
	NAME(set_port)(skb, inner.l4, ports.sport, to.dport, csum, 0);
	NAME(set_port)(skb, inner.l4 + 2, ports.dport, to.sport, csum, 0);
	if (NAME(same_addr)(&p->tuple.dst, &inner.tuple.src))
		NAME(set_addr)(skb, p->ip, true, &p->tuple.dst, &to.dst, ICMP_OUTER_CSUM(csum), BPF_F_PSEUDO_HDR);
	if (NAME(same_addr)(&p->tuple.src, &inner.tuple.dst))
		NAME(set_addr)(skb, p->ip, false, &p->tuple.src, &to.src, ICMP_OUTER_CSUM(csum), BPF_F_PSEUDO_HDR);
	return NOT_OURS;
}

INLINE int NAME(icmp)(struct __sk_buff *skb, const struct NAME(packet) *p, __u8 hook)
{
	const struct settings *node = node_settings();

	if (ICMP_IS_ERROR(p->icmp_type))
		return NAME(translate_error)(skb, p, hook);
	if (!node || (node->flags & DRAINING) || p->icmp_type != ICMP_ECHO_OF_FAMILY)
		return NOT_OURS;
	/* A service address answers no ping: it is refused like any undefined port. */
	if (bpf_map_lookup_elem(&NAME(cluster_ips), &p->tuple.dst))
		return hook == HOOK_INGRESS ? REFUSE | REASON_UNDEFINED_PORT : NOT_OURS;
	if (NAME(in_service_range)(&p->tuple.dst))
		return drop(REASON_UNUSED_CLUSTER_IP);
	return NOT_OURS;
}

INLINE int NAME(open)(struct __sk_buff *skb, const struct NAME(packet) *p, struct NAME(tuple) *forward)
{
	__u32 decided = NAME(open_flow)(skb, skb->ifindex, p, forward);

	switch (decided & DECISION_MASK) {
	case DECIDED_OPENED:
		return TRANSLATE;
	case DECIDED_DIRECT:
		return NAME(open_direct)(p, forward);
	case DECIDED_DROP:
		return drop(reason_of(decided));
	case DECIDED_REFUSE:
		return REFUSE | reason_of(decided);
	default:
		return NOT_OURS;
	}
}

/*
 * The verifier walks what follows once for everything that it knows of a packet: protocol, fragments, flags. What it reads
 * from the context it does not know, which makes it walk once.
 */
INLINE void NAME(forget_branches)(struct __sk_buff *skb, struct NAME(packet) *p)
{
	skb->cb[0] = p->protocol | p->tcp_flags << 8 | p->first_fragment << 16 | p->later_fragment << 17 | p->known << 18;
	asm volatile("" ::: "memory");
	p->protocol = skb->cb[0];
	p->tcp_flags = skb->cb[0] >> 8;
	p->first_fragment = skb->cb[0] >> 16 & 1;
	p->later_fragment = skb->cb[0] >> 17 & 1;
	p->known = skb->cb[0] >> 18 & 1;
}

/* An entry's packet: TRANSLATE, or what has been done with it. */
INLINE int NAME(follow)(struct __sk_buff *skb, const struct NAME(packet) *p, const struct NAME(tuple) *to, __u8 flags)
{
	if (flags & FLOW_TUNNEL)
		return NAME(send_by_tunnel)(skb, p, to);
	if (flags & FLOW_OPTION)
		return NAME(send_by_option)(skb, p, to);
	if ((flags & FLOW_CLAMP) && (p->tcp_flags & TCP_SYN))
		NAME(clamp_segments)(skb, p);
	return TRANSLATE;
}

INLINE int NAME(decide)(struct __sk_buff *skb, __u8 hook, struct NAME(packet) *p, struct NAME(tuple) *to)
{
	const struct NAME(flow_value) *flow;

	if (!NAME(read_plain)(skb, p)) {
		bool whole;

		if (comes_again(skb, hook))
			return NOT_OURS;
		whole = NAME(read_packet)(skb, link_header, hook, p);
		if (hook == HOOK_INGRESS) {
			struct NAME(sent_on) sent;

			if (NAME(read_sent_on)(skb, p, whole, &sent))
				return NAME(receive)(skb, p, &sent, to);
		}
		if (!whole)
			return NOT_OURS;
		if (p->protocol == PROTOCOL_ICMP_OF_FAMILY)
			return NAME(icmp)(skb, p, hook);
	}
	p->known = NAME(may_have_flow)(&p->tuple);
	/* Nearly all packets end here: of connections to endpoints themselves, and on their way out. */
	if (!p->known && (!begins(p->protocol, p->tcp_flags) || (hook == HOOK_EGRESS && skb->ingress_ifindex)))
		return NOT_OURS;
	if (comes_again(skb, hook))
		return NOT_OURS;
	NAME(forget_branches)(skb, p);
	flow = p->known ? NAME(renew_flow)(p, &p->tuple, hook) : NULL;
	if (flow) {
		*to = flow->to;
		return hook == HOOK_EGRESS ? NAME(follow)(skb, p, to, flow->flags) : TRANSLATE;
	}
	if (p->later_fragment)
		return NOT_OURS;
	if (hook == HOOK_INGRESS)
		return NAME(open)(skb, p, to);
	return skb->ingress_ifindex ? NOT_OURS : NAME(own_packet)(p);
}

INLINE int NAME(handle)(struct __sk_buff *skb, __u8 hook)
{
	struct NAME(packet) p;
	struct NAME(tuple) to;
	int verdict = NAME(decide)(skb, hook, &p, &to);

	if (hook == HOOK_INGRESS && verdict >= REFUSE)
		return NAME(refuse)(skb, &p, verdict & ~REFUSE);
	if (verdict != TRANSLATE)
		return verdict;
	NAME(rewrite)(skb, &p, &to);
	return NOT_OURS;
}
