/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Direct server return, for one family. Included with FAMILY 4 and 6 after flow_family.h.
 *
 * The frontend of a packet to an endpoint elsewhere goes along with it, as an option or by leaving the packet as the
 * client made it and putting another IP header in front (see flow.h). The endpoint's node makes the entries of a
 * connection to an endpoint of its own and answers the client from the frontend's address.
 */

INLINE void NAME(tunnel_header)(struct NAME(tunnel) *outer, const struct NAME(addr) *node, const struct NAME(tuple) *to,
				__u32 inner_bytes)
{
	__builtin_memset(outer, 0, sizeof(*outer));
#if FAMILY == 4
	outer->ip.version = 4;
	outer->ip.ihl = 5;
	outer->ip.tot_len = bpf_htons(inner_bytes + sizeof(outer->ip));
	outer->ip.id = to->dport;
	outer->ip.frag_off = bpf_htons(0x4000);	/* DF */
	outer->ip.ttl = TUNNEL_TTL;
	outer->ip.protocol = PROTOCOL_IPIP;
	outer->ip.saddr = node->w[0];
	outer->ip.daddr = to->dst.w[0];
	outer->ip.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)outer, sizeof(*outer), 0));
#else
	outer->ip.version = 6;
	outer->ip.flow_lbl[1] = bpf_ntohs(to->dport) >> 8;
	outer->ip.flow_lbl[2] = bpf_ntohs(to->dport);
	outer->ip.payload_len = bpf_htons(inner_bytes);
	outer->ip.nexthdr = PROTOCOL_IPV6;
	outer->ip.hop_limit = TUNNEL_TTL;
	__builtin_memcpy(&outer->ip.saddr, node, 16);
	__builtin_memcpy(&outer->ip.daddr, &to->dst, 16);
#endif
}

/* Fill the option and make `ip`, the header before it, say that it is there. */
INLINE void NAME(option_header)(struct NAME(option) *option, struct NAME(ip_header) *ip, const struct NAME(tuple) *frontend)
{
	__builtin_memset(option, 0, sizeof(*option));
	__builtin_memcpy(option->addr, &frontend->dst, sizeof(option->addr));
	option->port = frontend->dport;
#if FAMILY == 4
	option->kind = OPTION4_KIND;
	option->length = sizeof(*option);
	ip->h.ihl += sizeof(*option) / 4;
	ip->h.tot_len = bpf_htons(bpf_ntohs(ip->h.tot_len) + sizeof(*option));
	ip->h.check = 0;
	ip->h.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)option, sizeof(*option),
					      bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0)));
#else
	option->kind = OPTION6_KIND;
	option->length = sizeof(option->addr) + sizeof(option->port);
	option->pad_kind = 1;
	option->nexthdr = ip->h.nexthdr;
	option->units = sizeof(*option) / 8 - 1;
	ip->h.nexthdr = PROTOCOL_OPTIONS6;
	ip->h.payload_len = bpf_htons(bpf_ntohs(ip->h.payload_len) + sizeof(*option));
#endif
}
