/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * The flow table, for one family. Included with FAMILY 4 and 6 after filter_family.h.
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

INLINE void NAME(turn_round)(struct NAME(tuple) *turned, const struct NAME(tuple) *tuple)
{
	turned->src = tuple->dst;
	turned->dst = tuple->src;
	turned->sport = tuple->dport;
	turned->dport = tuple->sport;
}

INLINE const struct NAME(flow_value) *NAME(peek_flow)(const struct NAME(packet) *p, const struct NAME(tuple) *tuple)
{
	struct NAME(flow_key) key;

	__builtin_memset(&key, 0, sizeof(key));
	key.tuple = *tuple;
	key.protocol = p->protocol;
	key.hook = HOOK_EGRESS;
	return bpf_map_lookup_elem(&NAME(flows), &key);
}

/*
 * The entry of a packet at a hook, its time renewed; NULL for a new connection, also for one on an ended one's ports. For
 * callers that have asked the filter; find_flow() is for all others.
 */
INLINE struct NAME(flow_value) *NAME(renew_flow)(const struct NAME(packet) *p, const struct NAME(tuple) *tuple, __u8 hook)
{
	struct NAME(flow_value) *flow;
	struct NAME(flow_key) key;

	__builtin_memset(&key, 0, sizeof(key));
	key.tuple = *tuple;
	key.protocol = p->protocol;
	key.hook = hook;
	flow = bpf_map_lookup_elem(&NAME(flows), &key);
	if (!flow)
		return NULL;
	/* A SYN, or the answer to one, on a connection that has ended belongs to another, be it ours or not. */
	if ((flow->flags & FLOW_CLOSING) && (p->tcp_flags & TCP_SYN)) {
		bpf_map_delete_elem(&NAME(flows), &key);
		return NULL;
	}
	flow->seen = bpf_ktime_get_ns();
	if (p->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST))
		flow->flags = noted(flow->flags, p->tcp_flags);
	return flow;
}

/* The only way in: what has no byte in the filter is not found. flags: as of bpf_map_update_elem(). False: no room, or taken. */
INLINE bool NAME(put_flow)(const struct NAME(flow_key) *key, const struct NAME(flow_value) *value, __u64 flags)
{
	if (bpf_map_update_elem(&NAME(flows), key, value, flags))
		return false;
	NAME(mark_flow)(&key->tuple);
	return true;
}

/*
 * Enter endpoint -> client at egress. If the client already talks to this endpoint from this port through another
 * frontend, give the new connection another source port towards the endpoint. False: no free port.
 */
INLINE bool NAME(enter_reply)(const struct NAME(packet) *p, struct NAME(tuple) *forward, __u8 flags,
			       __u32 service)
{
	const struct NAME(flow_value) *held;
	struct NAME(flow_value) value;
	struct NAME(flow_key) key;

	/* A connection may be older than its entries: every packet through a tunnel makes them anew. */
	if (p->tcp_flags & TCP_SYN)
		flags |= FLOW_UNANSWERED;
	NAME(flow_entry)(&key, &value, p, HOOK_EGRESS, flags, service);
	key.tuple.src = forward->dst;
	key.tuple.sport = forward->dport;
	key.tuple.dst = forward->src;
	value.to.src = p->tuple.dst;
	value.to.sport = p->tuple.dport;
	value.to.dst = p->tuple.src;
	value.to.dport = p->tuple.sport;
	key.tuple.dport = forward->sport;
	held = bpf_map_lookup_elem(&NAME(flows), &key);
	/* Its own port is the client's to use again; one of ours is left until the last packets have gone. */
	if (!held || ((held->flags & FLOW_CLOSING) && forward->sport == p->tuple.sport) ||
	    (NAME(same_addr)(&held->to.src, &value.to.src) && held->to.sport == value.to.sport &&
	     held->to.dport == value.to.dport))
		return NAME(put_flow)(&key, &value, BPF_ANY);
#pragma clang loop unroll(disable)
	for (int attempt = 0; attempt < SNAT_TRIES; attempt++) {
		forward->sport = snat_port();
		key.tuple.dport = forward->sport;
		if (NAME(put_flow)(&key, &value, BPF_NOEXIST))
			return true;
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
		free = NAME(put_flow)(&key, &value, BPF_NOEXIST);
	}
	if (!free)
		return false;

	NAME(flow_entry)(&key, &value, p, HOOK_EGRESS, FLOW_FORWARD, service);
	key.tuple = *forward;
	value.to = *forward;
	value.to.src = *node;
	value.to.sport = port;
	return NAME(put_flow)(&key, &value, BPF_ANY);
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

/* Enter client -> frontend at ingress. */
INLINE bool NAME(enter_forward)(const struct NAME(packet) *p, const struct NAME(tuple) *forward, __u32 service)
{
	struct NAME(flow_value) value;
	struct NAME(flow_key) key;

	NAME(flow_entry)(&key, &value, p, HOOK_INGRESS, FLOW_FORWARD, service);
	key.tuple = p->tuple;
	value.to = *forward;
	return NAME(put_flow)(&key, &value, BPF_ANY);
}

INLINE struct NAME(flow_value) *NAME(find_flow)(const struct NAME(packet) *p, const struct NAME(tuple) *tuple, __u8 hook)
{
	return NAME(may_have_flow)(tuple) ? NAME(renew_flow)(p, tuple, hook) : NULL;
}
