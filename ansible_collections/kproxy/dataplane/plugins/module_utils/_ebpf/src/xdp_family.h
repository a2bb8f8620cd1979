/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* What XDP does with one packet, for one family. Included with FAMILY 4 and 6 after dsr_family.h. */

/* The packet's memory; every pointer into it is stale after bpf_xdp_adjust_head(). */
struct NAME(frame) {
	struct ethhdr link;
	struct NAME(ip_header) ip;
	struct port_pair ports;
} __attribute__((packed));

/* Whole TCP and UDP packets without options that may be forwarded; false for everything else. */
INLINE bool NAME(read_frame)(struct xdp_md *ctx, struct NAME(packet) *p)
{
	const struct NAME(frame) *frame = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;

	if ((const void *)(frame + 1) > end)
		return false;
	__builtin_memset(p, 0, sizeof(*p));
#if FAMILY == 4
	if (frame->ip.h.version != 4 || frame->ip.h.ihl != 5 || (frame->ip.h.frag_off & bpf_htons(0x3fff)) ||
	    frame->ip.h.ttl <= 1)
		return false;
	p->protocol = frame->ip.h.protocol;
	p->length = bpf_ntohs(frame->ip.h.tot_len);
	p->tuple.src.w[0] = frame->ip.h.saddr;
	p->tuple.dst.w[0] = frame->ip.h.daddr;
#else
	if (frame->ip.h.version != 6 || frame->ip.h.hop_limit <= 1)
		return false;
	p->protocol = frame->ip.h.nexthdr;
	p->length = sizeof(frame->ip.h) + bpf_ntohs(frame->ip.h.payload_len);
	__builtin_memcpy(&p->tuple.src, &frame->ip.h.saddr, 16);
	__builtin_memcpy(&p->tuple.dst, &frame->ip.h.daddr, 16);
#endif
	p->tuple.sport = frame->ports.sport;
	p->tuple.dport = frame->ports.dport;
	if (p->protocol == PROTOCOL_UDP)
		return true;
	if (p->protocol != PROTOCOL_TCP ||
	    (const void *)&frame->ports + TCP_FLAGS_OFFSET + 1 > end)
		return false;
	p->tcp_flags = *((const __u8 *)&frame->ports + TCP_FLAGS_OFFSET);
	return true;
}

/* Write `to` and the next hop's addresses, and take one from the hop limit. False for a packet that is cut short. */
INLINE bool NAME(write_frame)(struct xdp_md *ctx, struct NAME(packet) *p, struct NAME(tuple) *to,
			      const struct bpf_fib_lookup *route)
{
	struct NAME(frame) *frame = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u16 *check = (void *)&frame->ports + (p->protocol == PROTOCOL_UDP ? UDP_CSUM_OFFSET : TCP_CSUM_OFFSET);

	if ((void *)(frame + 1) > end || (void *)(check + 1) > end)
		return false;
	__builtin_memcpy(frame->link.h_dest, route->dmac, sizeof(route->dmac));
	__builtin_memcpy(frame->link.h_source, route->smac, sizeof(route->smac));
	/* The transport checksum covers the whole tuple. No checksum stays none (RFC 768). */
	if (p->protocol != PROTOCOL_UDP || *check) {
		*check = fold_csum(bpf_csum_diff((__be32 *)&p->tuple, sizeof(p->tuple), (__be32 *)to, sizeof(*to),
						 (__u16)~*check));
		if (p->protocol == PROTOCOL_UDP && !*check)
			*check = 0xffff;
	}
	frame->ports.sport = to->sport;
	frame->ports.dport = to->dport;
#if FAMILY == 4
	{
		/* The hop limit is the upper byte of its word (RFC 1141). */
		__u32 sum = fold_csum(bpf_csum_diff((__be32 *)&p->tuple, 8, (__be32 *)to, 8,
						    (__u16)~frame->ip.h.check));

		sum += bpf_htons(0x0100);
		frame->ip.h.check = sum + (sum >= 0xffff);
	}
	frame->ip.h.ttl -= 1;
	frame->ip.h.saddr = to->src.w[0];
	frame->ip.h.daddr = to->dst.w[0];
#else
	frame->ip.h.hop_limit -= 1;
	__builtin_memcpy(&frame->ip.h.saddr, &to->src, 16);
	__builtin_memcpy(&frame->ip.h.daddr, &to->dst, 16);
#endif
	return true;
}

INLINE bool NAME(put_tunnel)(struct xdp_md *ctx, const struct NAME(packet) *p, const struct NAME(tuple) *to)
{
	const struct settings *node = node_settings();
	struct NAME(tunnel) outer;
	struct NAME(addr) own;
	struct ethhdr *link;

	if (!node)
		return false;
	NOINLINE_COPY(&own.w, &node->NAME(node));
	NAME(tunnel_header)(&outer, &own, to, p->length);
	if (bpf_xdp_adjust_head(ctx, -TUNNEL_BYTES))
		return false;
	link = (void *)(long)ctx->data;
	if ((void *)(link + 2) + TUNNEL_BYTES > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(link, (void *)link + TUNNEL_BYTES, sizeof(*link));
	__builtin_memcpy(link + 1, &outer, sizeof(outer));
	return true;
}

INLINE bool NAME(put_option)(struct xdp_md *ctx, const struct NAME(tuple) *frontend)
{
	struct NAME(option) option;
	struct NAME(ip_header) ip;
	struct NAME(frame) *frame;
	struct ethhdr link;

	if (bpf_xdp_adjust_head(ctx, -OPTION_BYTES))
		return false;
	frame = (void *)(long)ctx->data;
	if ((void *)(frame + 1) + OPTION_BYTES > (void *)(long)ctx->data_end)
		return false;
	/* By way of the stack: the old and the new place overlap. */
	__builtin_memcpy(&link, (void *)&frame->link + OPTION_BYTES, sizeof(link));
	__builtin_memcpy(&ip, (void *)&frame->ip + OPTION_BYTES, sizeof(ip));
	NAME(option_header)(&option, &ip, frontend);
	__builtin_memcpy(&frame->link, &link, sizeof(link));
	__builtin_memcpy(&frame->ip, &ip, sizeof(ip));
	__builtin_memcpy((void *)&frame->link + sizeof(frame->link) + sizeof(ip), &option, sizeof(option));
	return true;
}

/* Send the packet on as `to`; `via` is its tuple between the hooks, by which the stack would route it. */
INLINE int NAME(send)(struct xdp_md *ctx, struct NAME(packet) *p, const struct NAME(tuple) *via, struct NAME(tuple) *to,
		      __u8 flags)
{
	struct bpf_fib_lookup route;
	const __u32 *mode;
	__u32 more = 0;

	if (flags & FLOW_TUNNEL)
		more = TUNNEL_BYTES;
	else if ((flags & FLOW_OPTION) && carries_option(p->protocol, p->tcp_flags))
		more = OPTION_BYTES;
	NAME(ask_route)(&route, ctx->ingress_ifindex, p, via, more);
	if (bpf_fib_lookup(ctx, &route, sizeof(route), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return leave_by(XDP_PASS, CARRIED_BY_TC);
	mode = bpf_map_lookup_elem(&xdp_links, &route.ifindex);
	if (!mode || (native && *mode != MODE_NATIVE))
		return leave_by(XDP_PASS, CARRIED_BY_TC);
	if (!NAME(write_frame)(ctx, p, to, &route))
		return leave_by(XDP_PASS, CARRIED_BY_TC);
	/* From here on the packet has changed: no way back to the stack. */
	if (((flags & FLOW_TUNNEL) && !NAME(put_tunnel)(ctx, p, via)) ||
	    (!(flags & FLOW_TUNNEL) && more && !NAME(put_option)(ctx, &p->tuple))) {
		count_reason(REASON_MALFORMED);
		return XDP_DROP;
	}
	if (route.ifindex == ctx->ingress_ifindex)
		return leave_by(XDP_TX, CARRIED_HERE);
	return leave_by(bpf_redirect(route.ifindex, 0), CARRIED_HERE);
}

INLINE int NAME(carry)(struct xdp_md *ctx)
{
	const struct NAME(flow_value) *flow;
	struct NAME(tuple) via, to;
	struct NAME(packet) p;
	__u8 flags = 0;

	if (!NAME(read_frame)(ctx, &p))
		return XDP_PASS;
	flow = NAME(find_flow)(&p, &p.tuple, HOOK_INGRESS);
	if (flow) {
		via = flow->to;
	} else {
		__u32 decided = NAME(open_flow)(ctx, ctx->ingress_ifindex, &p, &via);

		if ((decided & DECISION_MASK) == DECIDED_DROP) {
			count_reason(reason_of(decided));
			return XDP_DROP;
		}
		/* Refusals and connections to an endpoint itself are tc's. */
		if ((decided & DECISION_MASK) != DECIDED_OPENED)
			return XDP_PASS;
	}
	to = via;
	flow = NAME(renew_flow)(&p, &via, HOOK_EGRESS);
	if (flow) {
		flags = flow->flags;
		/* A packet that carries its frontend as an option goes to the endpoint itself. */
		if (!(flags & FLOW_OPTION))
			to = flow->to;
	}
	return NAME(send)(ctx, &p, &via, &to, flags);
}
