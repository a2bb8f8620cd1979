/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * The packet path, for one family. Included with FAMILY 4 and 6.
 *
 * A translated connection is two or four entries of flows4/6, each the whole tuple before and after one hook:
 *
 *   ingress  client -> frontend          becomes  client -> endpoint
 *   egress   client -> endpoint          becomes  node:port -> endpoint      (masqueraded only)
 *   ingress  endpoint -> node:port       becomes  endpoint -> client         (masqueraded only)
 *   egress   endpoint -> client          becomes  frontend -> client
 *
 * Between the hooks the node's stack routes and filters client <-> endpoint, as it would after netfilter's DNAT: strict
 * rp_filter holds, nothing looks martian, and what is delivered to the node itself is never masqueraded.
 */

struct NAME(flow_key) {
	struct NAME(tuple) tuple;
	__u8 protocol;
	__u8 hook;
	__u16 pad;
};

struct NAME(flow_value) {
	__u64 seen;			/* CLOCK_MONOTONIC, ns */
	struct NAME(tuple) to;
	__u32 service;
	__u8 flags;
	__u8 pad[3];
#if FAMILY == 4
	__u32 pad4;
#else
	__u32 pad6;
#endif
};

/* Size: four entries for each masqueraded connection. User space removes idle and closed ones (see FLOW_CLOSING). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct NAME(flow_key));
	__type(value, struct NAME(flow_value));
} NAME(flows) SEC(".maps");

struct NAME(prefix_key) {
	__u32 prefix;
	struct NAME(addr) addr;
};

/* Service ranges: their unused addresses are dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 256);
	__type(key, struct NAME(prefix_key));
	__type(value, __u32);
} NAME(service_cidrs) SEC(".maps");

/* Pod ranges, where pods are told by their address. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 256);
	__type(key, struct NAME(prefix_key));
	__type(value, __u32);
} NAME(pod_cidrs) SEC(".maps");

INLINE enum client NAME(client_of)(struct __sk_buff *skb, const struct settings *node, const struct NAME(addr) *src)
{
	struct NAME(prefix_key) key = { .prefix = 32 * WORDS, .addr = *src };
	__u32 link = skb->ifindex;

	if (node->flags & POD_BY_LINK)
		return bpf_map_lookup_elem(&pod_links, &link) ? CLIENT_POD : CLIENT_OUTSIDER;
	return bpf_map_lookup_elem(&NAME(pod_cidrs), &key) ? CLIENT_POD : CLIENT_OUTSIDER;
}

INLINE bool NAME(in_service_range)(const struct NAME(addr) *addr)
{
	struct NAME(prefix_key) key = { .prefix = 32 * WORDS, .addr = *addr };

	return bpf_map_lookup_elem(&NAME(service_cidrs), &key);
}

INLINE void NAME(flow_entry)(struct NAME(flow_key) *key, struct NAME(flow_value) *value,
			     const struct NAME(packet) *p, __u8 hook, __u8 flags, __u32 service)
{
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memset(value, 0, sizeof(*value));
	key->protocol = p->protocol;
	key->hook = hook;
	value->seen = bpf_ktime_get_ns();
	value->flags = flags;
	value->service = service;
}

/*
 * Enter endpoint -> client at egress. If the client already talks to this endpoint from this port through another
 * frontend, give the new connection another source port towards the endpoint. False: no free port.
 */
INLINE bool NAME(enter_reply)(const struct NAME(packet) *p, struct NAME(tuple) *forward, __u32 service)
{
	struct NAME(flow_value) value;
	struct NAME(flow_key) key;

	NAME(flow_entry)(&key, &value, p, HOOK_EGRESS, 0, service);
	key.tuple.src = forward->dst;
	key.tuple.sport = forward->dport;
	key.tuple.dst = forward->src;
	value.to.src = p->tuple.dst;
	value.to.sport = p->tuple.dport;
	value.to.dst = p->tuple.src;
	value.to.dport = p->tuple.sport;
	for (int attempt = 0; attempt < SNAT_TRIES; attempt++) {
		const struct NAME(flow_value) *held;

		key.tuple.dport = forward->sport;
		held = bpf_map_lookup_elem(&NAME(flows), &key);
		if (!held || (held->flags & FLOW_CLOSING) ||
		    (NAME(same_addr)(&held->to.src, &value.to.src) && held->to.sport == value.to.sport &&
		     held->to.dport == value.to.dport))
			return !bpf_map_update_elem(&NAME(flows), &key, &value, BPF_ANY);
		forward->sport = snat_port();
	}
	return false;
}

/* Enter the masquerading pair; false: no free port towards this endpoint. */
INLINE bool NAME(enter_masquerade)(const struct NAME(packet) *p, const struct NAME(tuple) *forward,
				   const struct NAME(addr) *node, __u32 service)
{
	struct NAME(flow_value) value;
	struct NAME(flow_key) key;
	__be16 port = 0;
	bool free = false;

	NAME(flow_entry)(&key, &value, p, HOOK_INGRESS, 0, service);
	key.tuple.src = forward->dst;
	key.tuple.sport = forward->dport;
	key.tuple.dst = *node;
	value.to.src = forward->dst;
	value.to.sport = forward->dport;
	value.to.dst = forward->src;
	value.to.dport = forward->sport;
	for (int attempt = 0; attempt < SNAT_TRIES && !free; attempt++) {
		port = snat_port();
		key.tuple.dport = port;
		free = !bpf_map_update_elem(&NAME(flows), &key, &value, BPF_NOEXIST);
	}
	if (!free)
		return false;

	NAME(flow_entry)(&key, &value, p, HOOK_EGRESS, FLOW_FORWARD, service);
	key.tuple = *forward;
	value.to = *forward;
	value.to.src = *node;
	value.to.sport = port;
	return !bpf_map_update_elem(&NAME(flows), &key, &value, BPF_ANY);
}

/* An ended connection of the same client port may have been masqueraded where this one is not. */
INLINE void NAME(forget_masquerade)(const struct NAME(packet) *p, const struct NAME(tuple) *forward)
{
	struct NAME(flow_key) key;

	__builtin_memset(&key, 0, sizeof(key));
	key.tuple = *forward;
	key.protocol = p->protocol;
	key.hook = HOOK_EGRESS;
	bpf_map_delete_elem(&NAME(flows), &key);
}

/*
 * The first packet to an endpoint itself. A client port that reached this endpoint through a frontend before left entries
 * that would take the endpoint's answers for their own: ended ones are removed; beside a live one, the new connection
 * gets another source port.
 */
INLINE int NAME(open_direct)(struct __sk_buff *skb, const struct NAME(packet) *p)
{
	const struct NAME(flow_value) *held;
	struct NAME(flow_value) value;
	struct NAME(flow_key) key;
	struct NAME(tuple) forward = p->tuple;

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
	if (!NAME(enter_reply)(p, &forward, 0))
		return drop(REASON_NO_SNAT_PORT);
	NAME(flow_entry)(&key, &value, p, HOOK_INGRESS, FLOW_FORWARD, 0);
	key.tuple = p->tuple;
	value.to = forward;
	if (bpf_map_update_elem(&NAME(flows), &key, &value, BPF_ANY))
		return drop(REASON_FLOW_TABLE_FULL);
	NAME(rewrite)(skb, p, &forward);
	return NOT_OURS;
}

/* The first packet of a connection that came in by a device. */
INLINE int NAME(open_flow)(struct __sk_buff *skb, const struct NAME(packet) *p)
{
	const struct settings *node = node_settings();
	const struct frontend_value *frontend;
	struct NAME(endpoint) chosen;
	struct NAME(flow_value) value;
	struct NAME(flow_key) key;
	struct NAME(tuple) forward;
	struct NAME(addr) own;
	enum client kind;
	__u8 answer;
	__u32 hash;

	if (!node || (node->flags & DRAINING) ||
	    (p->protocol == PROTOCOL_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN))
		return NOT_OURS;
	frontend = NAME(exact_frontend)(&p->tuple.dst, p->tuple.dport, p->protocol);
	if (frontend && (frontend->flags & FRONTEND_RANGES) && !NAME(in_ranges)(frontend, &p->tuple.src))
		return drop(REASON_SOURCE_RANGE);
	kind = NAME(client_of)(skb, node, &p->tuple.src);
	frontend = NAME(find_frontend)(&p->tuple.dst, p->tuple.dport, p->protocol, kind);
	if (!frontend) {
		if (bpf_map_lookup_elem(&NAME(cluster_ips), &p->tuple.dst))
			return refuse(skb, node, REASON_UNDEFINED_PORT);
		if (NAME(in_service_range)(&p->tuple.dst))
			return drop(REASON_UNUSED_CLUSTER_IP);
		return NAME(open_direct)(skb, p);
	}
	answer = frontend->answer[kind];
	if ((answer & VERDICT_MASK) == VERDICT_ELSEWHERE)
		return NOT_OURS;
	if ((answer & VERDICT_MASK) == VERDICT_DROP)
		return drop(REASON_NO_LOCAL_ENDPOINT);
	if ((answer & VERDICT_MASK) == VERDICT_REJECT)
		return refuse(skb, node, REASON_NO_ENDPOINT);
	hash = NAME(flow_hash)(&p->tuple.src, &p->tuple.dst, p->tuple.sport, p->tuple.dport, p->protocol);
	if (!NAME(choose_endpoint)(frontend, !!(answer & LOCAL_ONLY), &p->tuple.src, &hash, &chosen))
		return refuse(skb, node, REASON_MISSING_SLOT);

	forward = p->tuple;
	forward.dst = chosen.addr;
	forward.dport = chosen.port;
	if (!NAME(enter_reply)(p, &forward, frontend->service))
		return drop(REASON_NO_SNAT_PORT);
	/* A connection that comes back to its own sender must look like the node's, or the sender's kernel discards it. */
	if ((answer & MASQUERADE) ||
	    ((chosen.flags & ENDPOINT_LOCAL) && NAME(same_addr)(&chosen.addr, &p->tuple.src))) {
		NOINLINE_COPY(&own.w, &node->NAME(node));
		if (NAME(unset_addr)(&own) || !NAME(enter_masquerade)(p, &forward, &own, frontend->service))
			return drop(REASON_NO_SNAT_PORT);
	} else {
		NAME(forget_masquerade)(p, &forward);
	}
	NAME(flow_entry)(&key, &value, p, HOOK_INGRESS, FLOW_FORWARD, frontend->service);
	key.tuple = p->tuple;
	value.to = forward;
	if (bpf_map_update_elem(&NAME(flows), &key, &value, BPF_ANY))
		return drop(REASON_FLOW_TABLE_FULL);
	NAME(rewrite)(skb, p, &forward);
	return NOT_OURS;
}

/* Packets of the node's own sockets that the socket programs left alone: what must be silent is silenced here. */
INLINE int NAME(own_packet)(const struct NAME(packet) *p)
{
	const struct settings *node = node_settings();
	const struct frontend_value *frontend;

	if (!node || (node->flags & DRAINING))
		return NOT_OURS;
	if (p->protocol == PROTOCOL_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
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
	if (!flow)
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

INLINE int NAME(handle)(struct __sk_buff *skb, __u8 hook)
{
	struct NAME(flow_value) *flow;
	struct NAME(flow_key) key;
	struct NAME(packet) p;

	if (!NAME(read_packet)(skb, hook, &p))
		return NOT_OURS;
	if (p.protocol == PROTOCOL_ICMP_OF_FAMILY)
		return NAME(icmp)(skb, &p, hook);

	__builtin_memset(&key, 0, sizeof(key));
	key.tuple = p.tuple;
	key.protocol = p.protocol;
	key.hook = hook;
	flow = bpf_map_lookup_elem(&NAME(flows), &key);
	/* A new SYN on a connection that has ended is a new connection. */
	if (flow && !((flow->flags & FLOW_CLOSING) && hook == HOOK_INGRESS && (flow->flags & FLOW_FORWARD) &&
		      (p.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)) {
		struct NAME(tuple) to = flow->to;

		flow->seen = bpf_ktime_get_ns();
		if (p.tcp_flags & (TCP_FIN | TCP_RST))
			flow->flags |= FLOW_CLOSING;
		NAME(rewrite)(skb, &p, &to);
		return NOT_OURS;
	}
	if (p.later_fragment)
		return NOT_OURS;
	if (hook == HOOK_INGRESS)
		return NAME(open_flow)(skb, &p);
	return skb->ingress_ifindex ? NOT_OURS : NAME(own_packet)(&p);
}
