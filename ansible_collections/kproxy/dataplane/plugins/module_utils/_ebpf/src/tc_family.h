/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* What tc does with one packet, for one family. Included with FAMILY 4 and 6 after flow_family.h. */

/* A direct connection beside one through a frontend: with another source port, `anyhow` even if the table shows none. */
INLINE int NAME(open_beside)(struct __sk_buff *skb, const struct NAME(packet) *p, bool anyhow)
{
	struct NAME(tuple) forward = p->tuple;

	if (anyhow)
		forward.sport = snat_port();
	if (!NAME(enter_reply)(p, &forward, 0, 0))
		return drop(REASON_NO_SNAT_PORT);
	if (!NAME(enter_forward)(p, &forward, 0))
		return drop(REASON_FLOW_TABLE_FULL);
	NAME(rewrite)(skb, p, &forward);
	return NOT_OURS;
}

/*
 * The first packet to an endpoint itself. A client port that reached this endpoint through a frontend before left entries
 * that would take the endpoint's answers for their own: ended ones are removed; beside a live one, the new connection
 * gets another source port.
 */
INLINE int NAME(open_direct)(struct __sk_buff *skb, const struct NAME(packet) *p)
{
	const struct NAME(flow_value) *held;
	struct NAME(flow_key) key;

	held = NAME(peek_flow)(p, &p->tuple);
	if (held && (held->flags & (FLOW_TUNNEL | FLOW_OPTION)) && !(held->flags & FLOW_CLOSING))
		return NAME(open_beside)(skb, p, true);
	if (held && (held->flags & (FLOW_TUNNEL | FLOW_OPTION)))
		NAME(forget_masquerade)(p, &p->tuple);
	__builtin_memset(&key, 0, sizeof(key));
	key.tuple.src = p->tuple.dst;
	key.tuple.dst = p->tuple.src;
	key.tuple.sport = p->tuple.dport;
	key.tuple.dport = p->tuple.sport;
	key.protocol = p->protocol;
	key.hook = HOOK_EGRESS;
	held = bpf_map_lookup_elem(&NAME(flows), &key);
	if (!held)
		return NOT_OURS;
	if (held->flags & FLOW_CLOSING) {
		bpf_map_delete_elem(&NAME(flows), &key);
		NAME(forget_masquerade)(p, &p->tuple);
		return NOT_OURS;
	}
	return NAME(open_beside)(skb, p, false);
}

/* Packets of the node's own sockets that the socket programs left alone: what must be silent is silenced here. */
INLINE int NAME(own_packet)(const struct NAME(packet) *p)
{
	const struct settings *node = node_settings();
	const struct frontend_value *frontend;

	if (!node || (node->flags & DRAINING))
		return NOT_OURS;
	if (!begins(p->protocol, p->tcp_flags))
		return NOT_OURS;
	frontend = NAME(exact_frontend)(&p->tuple.dst, p->tuple.dport, p->protocol);
	if (frontend) {
		if ((frontend->answer[CLIENT_NODE] & VERDICT_MASK) == VERDICT_DROP)
			return drop(REASON_NO_LOCAL_ENDPOINT);
		if ((frontend->flags & FRONTEND_RANGES) && !NAME(in_ranges)(frontend, &p->tuple.src))
			return drop(REASON_SOURCE_RANGE);
		return NOT_OURS;
	}
	if (!bpf_map_lookup_elem(&NAME(cluster_ips), &p->tuple.dst) && NAME(in_service_range)(&p->tuple.dst))
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
		return hook == HOOK_INGRESS ? refuse(skb, node, REASON_UNDEFINED_PORT) : NOT_OURS;
	if (NAME(in_service_range)(&p->tuple.dst))
		return drop(REASON_UNUSED_CLUSTER_IP);
	return NOT_OURS;
}

INLINE int NAME(open)(struct __sk_buff *skb, const struct NAME(packet) *p)
{
	const struct settings *node;
	struct NAME(tuple) forward;
	__u32 decided = NAME(open_flow)(skb, skb->ifindex, p, &forward);

	switch (decided & DECISION_MASK) {
	case DECIDED_OPENED:
		NAME(rewrite)(skb, p, &forward);
		return NOT_OURS;
	case DECIDED_DIRECT:
		return NAME(open_direct)(skb, p);
	case DECIDED_DROP:
		return drop(reason_of(decided));
	case DECIDED_REFUSE:
		node = node_settings();
		return node ? refuse(skb, node, reason_of(decided)) : NOT_OURS;
	default:
		return NOT_OURS;
	}
}

/* What another node may have sent here for an endpoint: false if it is none of that. */
INLINE bool NAME(received)(struct __sk_buff *skb, struct NAME(packet) *p, bool whole, int *result)
{
	if (!whole && p->protocol == PROTOCOL_TUNNEL_OF_FAMILY) {
		*result = NAME(receive_tunnel)(skb);
		return true;
	}
#if FAMILY == 4
	return whole && p->l4 - p->ip == sizeof(struct iphdr) + OPTION_BYTES && NAME(receive_option)(skb, p, result);
#else
	if (whole || p->protocol != PROTOCOL_OPTIONS6 || !NAME(read_behind)(skb, p->l4 + OPTION_BYTES, p))
		return false;
	return NAME(receive_option)(skb, p, result);
#endif
}

INLINE int NAME(handle)(struct __sk_buff *skb, __u8 hook)
{
	const struct NAME(flow_value) *flow;
	struct NAME(packet) p;
	bool whole = NAME(read_packet)(skb, link_header, hook, &p);
	int result;

	if (hook == HOOK_INGRESS && NAME(received)(skb, &p, whole, &result))
		return result;
	if (!whole)
		return NOT_OURS;
	if (p.protocol == PROTOCOL_ICMP_OF_FAMILY)
		return NAME(icmp)(skb, &p, hook);

	flow = NAME(find_flow)(&p, &p.tuple, hook);
	if (flow) {
		struct NAME(tuple) to = flow->to;
		__u8 flags = flow->flags;

		if (flags & FLOW_TUNNEL)
			return NAME(send_by_tunnel)(skb, &p, &to);
		if (flags & FLOW_OPTION)
			return NAME(send_by_option)(skb, &p, &to);
		if ((flags & FLOW_CLAMP) && (p.tcp_flags & TCP_SYN))
			NAME(clamp_segments)(skb, &p);
		NAME(rewrite)(skb, &p, &to);
		return NOT_OURS;
	}
	if (p.later_fragment)
		return NOT_OURS;
	if (hook == HOOK_INGRESS)
		return NAME(open)(skb, &p);
	return skb->ingress_ifindex ? NOT_OURS : NAME(own_packet)(&p);
}
