/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * The answer to a packet that is refused at ingress, for one family: the packet itself becomes the error "port
 * unreachable" (RFC 792, RFC 4443) and leaves by the device it came in by, back to who sent it there. It speaks in the
 * name of the address that was dialled, as answers from that frontend do, so it takes no way that they could not take.
 */

struct NAME(unreachable) {
	struct NAME(ip_header) ip;
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 unused;
};

/* What is quoted: the IP header with IPv4 options or a fragment header, and what the sender needs behind it. */
struct NAME(quote) {
	__u8 ip[FAMILY == 4 ? 60 : 48];
	__u8 l4[20];
} __attribute__((aligned(4)));

/* Whether an address stands for one host elsewhere; errors go to no other, and are about packets to no other. */
INLINE bool NAME(one_host)(const struct NAME(addr) *addr)
{
	/* Network byte order: the lowest byte comes first. */
	__u8 first = addr->w[0];

#if FAMILY == 4
	return first != 0 && first != 127 && first < 224;
#else
	return first != 0xff && (addr->w[0] | addr->w[1] | addr->w[2] || bpf_ntohl(addr->w[3]) > 1);
#endif
}

INLINE void NAME(unreachable_header)(struct NAME(unreachable) *error, const struct NAME(tuple) *about,
				     const struct NAME(quote) *quote, __u32 quoted)
{
	__u32 sum = bpf_csum_diff(NULL, 0, (__be32 *)quote, sizeof(*quote), 0);
	__u32 length = sizeof(*error) - sizeof(error->ip) + quoted;

	__builtin_memset(error, 0, sizeof(*error));
#if FAMILY == 4
	error->type = 3;
	error->code = 3;
	error->ip.h.version = 4;
	error->ip.h.ihl = sizeof(error->ip) / 4;
	error->ip.h.tos = 0xc0;			/* internetwork control (RFC 1812, 4.3.2.5) */
	error->ip.h.tot_len = bpf_htons(sizeof(error->ip) + length);
	error->ip.h.frag_off = bpf_htons(0x4000);	/* DF */
	error->ip.h.ttl = REFUSAL_TTL;
	error->ip.h.protocol = PROTOCOL_ICMP;
	error->ip.h.saddr = about->dst.w[0];
	error->ip.h.daddr = about->src.w[0];
	error->ip.h.check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)&error->ip, sizeof(error->ip), 0));
#else
	__be32 pseudo[2] = { bpf_htonl(length), bpf_htonl(PROTOCOL_ICMP6) };

	error->type = 1;
	error->code = 4;
	error->ip.h.version = 6;
	error->ip.h.payload_len = bpf_htons(length);
	error->ip.h.nexthdr = PROTOCOL_ICMP6;
	error->ip.h.hop_limit = REFUSAL_TTL;
	__builtin_memcpy(&error->ip.h.saddr, &about->dst, 16);
	__builtin_memcpy(&error->ip.h.daddr, &about->src, 16);
	sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), sum);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&error->ip.h.saddr, 32, sum);
#endif
	error->check = fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)&error->type, sizeof(*error) - sizeof(error->ip), sum));
}

INLINE int NAME(refuse)(struct __sk_buff *skb, const struct NAME(packet) *p, __u32 reason)
{
	__u32 header = p->l4 - p->ip, segment = QUOTED_BYTES;
	struct NAME(unreachable) error;
	struct NAME(quote) quote;

	/* To another host, seen by a port of a bridge: the bridge has these programs, too, should it be for this node. */
	if (skb->pkt_type == PACKET_OTHERHOST)
		return NOT_OURS;
	count_reason(reason);
	if (skb->pkt_type != PACKET_HOST || !NAME(one_host)(&p->tuple.src) || !NAME(one_host)(&p->tuple.dst))
		return drop(REASON_UNANSWERABLE);
	if (!pay_for_refusal())
		return drop(REASON_REFUSAL_LIMIT);

	if (p->protocol == PROTOCOL_TCP)
		segment = QUOTED_BYTES_TCP;
	else if (p->protocol == PROTOCOL_SCTP)
		segment = QUOTED_BYTES_SCTP;
	asm volatile("" : "+r"(header), "+r"(segment));
	__builtin_memset(&quote, 0, sizeof(quote));
	if (header < sizeof(error.ip) || header > sizeof(quote.ip) || segment < QUOTED_BYTES ||
	    segment > sizeof(quote.l4) || bpf_skb_load_bytes(skb, p->ip, quote.ip, header) ||
	    bpf_skb_load_bytes(skb, p->l4, quote.l4, segment))
		return drop(REASON_MALFORMED);
	/* An IPv4 header whose own checksum is wrong may name anybody; the stack has not looked at it yet. */
	if (FAMILY == 4 && fold_csum(bpf_csum_diff(NULL, 0, (__be32 *)quote.ip, sizeof(quote.ip), 0)))
		return drop(REASON_MALFORMED);
	if (p->protocol == PROTOCOL_TCP)
		settle_csum(quote.l4, TCP_CSUM_OFFSET);
	else if (p->protocol == PROTOCOL_UDP)
		settle_csum(quote.l4, UDP_CSUM_OFFSET);
	NAME(unreachable_header)(&error, &p->tuple, &quote, header + segment);

	/* Cut first: that ends segmentation offload, and the headers of a train of datagrams cannot be moved. */
	if (bpf_skb_change_tail(skb, p->l4 + segment, 0) ||
	    bpf_skb_adjust_room(skb, sizeof(error), BPF_ADJ_ROOM_MAC, 0) || !send_back(skb) ||
	    bpf_skb_store_bytes(skb, p->ip, &error, sizeof(error), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, p->l4 + sizeof(error), quote.l4, segment, BPF_F_RECOMPUTE_CSUM))
		return drop(REASON_MALFORMED);
	return bpf_redirect(skb->ifindex, 0);
}
