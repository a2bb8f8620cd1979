/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* What becomes of a new connection, for one family. Included with FAMILY 4 and 6 after flow_family.h. */

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

INLINE enum client NAME(client_of)(__u32 link, const struct settings *node, const struct NAME(addr) *src)
{
	struct NAME(prefix_key) key = { .prefix = 32 * WORDS, .addr = *src };

	if (node->flags & POD_BY_LINK)
		return bpf_map_lookup_elem(&pod_links, &link) ? CLIENT_POD : CLIENT_OUTSIDER;
	return bpf_map_lookup_elem(&NAME(pod_cidrs), &key) ? CLIENT_POD : CLIENT_OUTSIDER;
}

INLINE bool NAME(in_pod_range)(const struct NAME(addr) *addr)
{
	struct NAME(prefix_key) key = { .prefix = 32 * WORDS, .addr = *addr };

	return bpf_map_lookup_elem(&NAME(pod_cidrs), &key);
}

INLINE bool NAME(in_service_range)(const struct NAME(addr) *addr)
{
	struct NAME(prefix_key) key = { .prefix = 32 * WORDS, .addr = *addr };

	return bpf_map_lookup_elem(&NAME(service_cidrs), &key);
}

/* Ask for the way to an endpoint of a packet that grows by `more` bytes; as the stack would: after DNAT, before SNAT. */
INLINE void NAME(ask_route)(struct bpf_fib_lookup *route, __u32 link, const struct NAME(packet) *p,
			    const struct NAME(tuple) *forward, __u32 more)
{
	__builtin_memset(route, 0, sizeof(*route));
	route->l4_protocol = p->protocol;
	route->sport = forward->sport;
	route->dport = forward->dport;
	route->tot_len = p->length + more;
	route->ifindex = link;
#if FAMILY == 4
	route->family = 2;		/* AF_INET */
	route->ipv4_src = forward->src.w[0];
	route->ipv4_dst = forward->dst.w[0];
#else
	route->family = 10;		/* AF_INET6 */
	__builtin_memcpy(route->ipv6_src, &forward->src, 16);
	__builtin_memcpy(route->ipv6_dst, &forward->dst, 16);
#endif
}

/*
 * Whether this client port is in use towards this endpoint through another frontend: by direct return on the way there,
 * by any other on the way back.
 */
INLINE bool NAME(port_in_use)(const struct NAME(packet) *p, const struct NAME(tuple) *forward)
{
	const struct NAME(flow_value) *held;
	struct NAME(tuple) back;

	if (!NAME(may_have_flow)(forward))
		return false;
	held = NAME(peek_flow)(p, forward);
	if (held && !(held->flags & FLOW_CLOSING) &&
	    (!(held->flags & (FLOW_TUNNEL | FLOW_OPTION)) || !NAME(same_addr)(&held->to.dst, &p->tuple.dst) ||
	     held->to.dport != p->tuple.dport))
		return true;
	NAME(turn_round)(&back, forward);
	held = NAME(peek_flow)(p, &back);
	return held && !(held->flags & FLOW_CLOSING);
}

/*
 * Enter client -> endpoint at egress as one that keeps the client's address: the endpoint's node reads the frontend from
 * the packet and answers by itself. False where that cannot be: the caller masquerades instead.
 */
INLINE bool NAME(enter_dsr)(void *ctx, __u32 link, const struct NAME(packet) *p, const struct NAME(tuple) *forward,
			    const struct settings *node, __u32 service)
{
	bool tunnel = node->flags & DSR_TUNNEL;
	struct bpf_fib_lookup route;
	struct NAME(flow_value) value;
	struct NAME(flow_key) key;

	if (p->first_fragment)
		return false;
	if (tunnel) {
		struct NAME(addr) own;

		NOINLINE_COPY(&own.w, &node->NAME(node));
		if (NAME(unset_addr)(&own))
			return false;
	}
	NAME(ask_route)(&route, link, p, forward, tunnel ? TUNNEL_BYTES : OPTION_BYTES);
	if (bpf_fib_lookup(ctx, &route, sizeof(route), 0) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return false;
	NAME(flow_entry)(&key, &value, p, HOOK_EGRESS, FLOW_FORWARD | (tunnel ? FLOW_TUNNEL : FLOW_OPTION), service);
	key.tuple = *forward;
	value.to = p->tuple;
	return NAME(put_flow)(&key, &value, BPF_ANY);
}

/* Whether there may be a frontend or a cluster IP of this address; not asked for NodePorts. */
INLINE bool NAME(may_be_served)(const struct NAME(addr) *addr)
{
#if FAMILY == 4
	return may_serve(addr->w[0] & bpf_htonl(0xffffff00));
#else
	__u64 block = ((__u64)addr->w[1] << 32 | addr->w[0]) * FILTER_MIX +
		      ((__u64)(addr->w[3] & bpf_htonl(0xffff0000)) << 32 | addr->w[2]) * FILTER_MIX6;

	return may_serve(block ^ block >> 32);
#endif
}

/* The first packet of a connection that no frontend answers. served: as may_be_served() says. */
INLINE __u32 NAME(open_unserved)(const struct NAME(addr) *dst, bool served)
{
	if (served && bpf_map_lookup_elem(&NAME(cluster_ips), dst))
		return because(DECIDED_REFUSE, REASON_UNDEFINED_PORT);
	if (NAME(in_service_range)(dst))
		return because(DECIDED_DROP, REASON_UNUSED_CLUSTER_IP);
	return DECIDED_DIRECT;
}

/*
 * The first packet of a connection that came in by device `link`: what becomes of it, and `forward`, its tuple from now
 * on, where entries were made. Touches no packet, so that tc and XDP decide alike.
 */
INLINE __u32 NAME(open_flow)(void *ctx, __u32 link, const struct NAME(packet) *p, struct NAME(tuple) *forward)
{
	const struct settings *node = node_settings();
	const struct frontend_value *frontend;
	struct NAME(endpoint) chosen;
	struct NAME(addr) own;
	bool masquerade, served;
	enum client kind;
	__u8 answer;
	__u32 hash;

	if (!node || !begins(p->protocol, p->tcp_flags))
		return DECIDED_NOT_OURS;
	if (node->flags & DRAINING)
		return DECIDED_DIRECT;
	served = NAME(may_be_served)(&p->tuple.dst);
	frontend = served ? NAME(exact_frontend)(&p->tuple.dst, p->tuple.dport, p->protocol) : NULL;
	if (!frontend && !bpf_map_lookup_elem(&NAME(node_addrs), &p->tuple.dst))
		return NAME(open_unserved)(&p->tuple.dst, served);
	if (frontend && (frontend->flags & FRONTEND_RANGES) && !NAME(in_ranges)(frontend, &p->tuple.src))
		return because(DECIDED_DROP, REASON_SOURCE_RANGE);
	kind = NAME(client_of)(link, node, &p->tuple.src);
	frontend = NAME(find_frontend)(frontend, &p->tuple.dst, p->tuple.dport, p->protocol, kind);
	if (!frontend)
		return NAME(open_unserved)(&p->tuple.dst, served);
	answer = frontend->answer[kind];
	if ((answer & VERDICT_MASK) == VERDICT_ELSEWHERE)
		return DECIDED_NOT_OURS;
	if ((answer & VERDICT_MASK) == VERDICT_DROP)
		return because(DECIDED_DROP, REASON_NO_LOCAL_ENDPOINT);
	if ((answer & VERDICT_MASK) == VERDICT_REJECT)
		return because(DECIDED_REFUSE, REASON_NO_ENDPOINT);
	hash = NAME(flow_hash)(&p->tuple.src, &p->tuple.dst, p->tuple.sport, p->tuple.dport, p->protocol);
	if (!NAME(choose_endpoint)(frontend, !!(answer & LOCAL_ONLY), &p->tuple.src, &hash, &chosen))
		return because(DECIDED_REFUSE, REASON_MISSING_SLOT);

	*forward = p->tuple;
	forward->dst = chosen.addr;
	forward->dport = chosen.port;
	/* A pod's sockets reach other pods directly, too, from ports that no entry here knows of. */
	if (kind == CLIENT_POD && !NAME(same_addr)(&chosen.addr, &p->tuple.src))
		forward->sport = snat_port();
	/* A connection that comes back to its own sender must look like the node's, or the sender's kernel discards it. */
	masquerade = (answer & MASQUERADE) ||
		     ((chosen.flags & ENDPOINT_LOCAL) && NAME(same_addr)(&chosen.addr, &p->tuple.src));
	if (masquerade && kind == CLIENT_OUTSIDER && (node->flags & (DSR_OPTION | DSR_TUNNEL)) &&
	    !bpf_map_lookup_elem(&NAME(cluster_ips), &p->tuple.dst)) {
		if (chosen.flags & ENDPOINT_LOCAL) {
			/* Its answers come through here anyway. */
			masquerade = false;
		} else if (!NAME(in_pod_range)(&chosen.addr)) {
			/* Perhaps no node of the cluster has it, and then nobody would read what is added. */
			count_reason(REASON_DSR_MASQUERADED);
		} else if (NAME(port_in_use)(p, forward)) {
			/* Another port for the client would be unknown to the endpoint's node. */
			forward->sport = snat_port();
			count_reason(REASON_DSR_MASQUERADED);
		} else if (NAME(enter_dsr)(ctx, link, p, forward, node, frontend->service)) {
			return NAME(enter_forward)(p, forward, frontend->service)
				       ? DECIDED_OPENED
				       : because(DECIDED_DROP, REASON_FLOW_TABLE_FULL);
		} else {
			count_reason(REASON_DSR_MASQUERADED);
		}
	}
	if (!NAME(enter_reply)(p, forward, 0, frontend->service))
		return because(DECIDED_DROP, REASON_NO_SNAT_PORT);
	if (masquerade) {
		NOINLINE_COPY(&own.w, &node->NAME(node));
		if (NAME(unset_addr)(&own) || !NAME(enter_masquerade)(p, forward, &own, frontend->service))
			return because(DECIDED_DROP, REASON_NO_SNAT_PORT);
	} else {
		NAME(forget_masquerade)(p, forward);
	}
	if (!NAME(enter_forward)(p, forward, frontend->service))
		return because(DECIDED_DROP, REASON_FLOW_TABLE_FULL);
	return DECIDED_OPENED;
}

/* The service whose frontend `tuple` dials and which has `endpoint` here; 0: none. `dialled`: there is such a frontend. */
INLINE __u32 NAME(serving_here)(const struct NAME(tuple) *tuple, __u8 protocol, const struct NAME(endpoint) *endpoint,
				bool *dialled)
{
	const struct frontend_value *frontend = NAME(exact_frontend)(&tuple->dst, tuple->dport, protocol);
	struct NAME(member_key) member = { .endpoint = *endpoint };
	struct NAME(addr) any;

	*dialled = frontend;
	if (frontend) {
		member.set = set_number(frontend->service, false);
		if (bpf_map_lookup_elem(&NAME(members), &member))
			return frontend->service;
	}
	/* A NodePort of another node. */
	__builtin_memset(&any, 0, sizeof(any));
	frontend = NAME(exact_frontend)(&any, tuple->dport, protocol);
	if (!frontend)
		return 0;
	*dialled = true;
	member.set = set_number(frontend->service, false);
	return bpf_map_lookup_elem(&NAME(members), &member) ? frontend->service : 0;
}

/*
 * A packet that another node sent on for an endpoint here. `p` is as the client made it; `forward` is what it becomes.
 * Every packet through a tunnel names its endpoint, so a connection lives on even where its entries were lost.
 */
INLINE __u32 NAME(accept_flow)(const struct NAME(packet) *p, const struct NAME(endpoint) *endpoint, bool tunnel,
			       struct NAME(tuple) *forward)
{
	const struct NAME(flow_value) *flow = NAME(find_flow)(p, &p->tuple, HOOK_INGRESS);
	const struct settings *node = node_settings();
	bool dialled;
	__u32 service;

	if (flow && NAME(same_addr)(&flow->to.dst, &endpoint->addr) && flow->to.dport == endpoint->port) {
		*forward = flow->to;
		return DECIDED_OPENED;
	}
	if (p->later_fragment || !node || (node->flags & DRAINING))
		return DECIDED_NOT_OURS;
	service = NAME(serving_here)(&p->tuple, p->protocol, endpoint, &dialled);
	if (!service)
		return dialled ? because(DECIDED_DROP, REASON_DSR_UNKNOWN) : DECIDED_NOT_OURS;
	*forward = p->tuple;
	forward->dst = endpoint->addr;
	forward->dport = endpoint->port;
	if (!NAME(enter_reply)(p, forward, tunnel ? FLOW_CLAMP : 0, service))
		return because(DECIDED_DROP, REASON_NO_SNAT_PORT);
	/* Without a tunnel, the packets that follow name no frontend, and so could not be told from another's. */
	if (!tunnel && forward->sport != p->tuple.sport)
		return because(DECIDED_DROP, REASON_DSR_UNKNOWN);
	NAME(forget_masquerade)(p, forward);
	if ((tunnel || p->protocol == PROTOCOL_UDP) && !NAME(enter_forward)(p, forward, service))
		return because(DECIDED_DROP, REASON_FLOW_TABLE_FULL);
	return DECIDED_OPENED;
}
