/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Reading and rewriting packets at tc, for one family. Included with FAMILY 4 and 6 after tuple_family.h.
 * Everything goes through helpers that copy, so a packet in fragments of memory needs no care and no pointer goes stale.
 */

struct NAME(fragment_key) {
	struct NAME(addr) src;
	struct NAME(addr) dst;
	__u32 id;
	__u8 protocol;
	__u8 hook;
	__u16 pad;
};

/* Ports of datagrams in flight: later fragments carry none. One that arrives before the first is passed on as it is. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct NAME(fragment_key));
	__type(value, struct port_pair);
} NAME(fragments) SEC(".maps");

#if FAMILY == 4
INLINE bool read_ip4(struct __sk_buff *skb, __u32 at, struct packet4 *p)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.ihl < 5)
		return false;
	p->ip = at;
	p->l4 = at + ip.ihl * 4;
	p->length = bpf_ntohs(ip.tot_len);
	p->protocol = ip.protocol;
	p->tuple.src.w[0] = ip.saddr;
	p->tuple.dst.w[0] = ip.daddr;
	p->fragment = ip.id;
	p->later_fragment = ip.frag_off & bpf_htons(0x1fff);
	p->first_fragment = !p->later_fragment && (ip.frag_off & bpf_htons(0x2000));
	return true;
}
#else
/* One fragment header is followed; any other extension header ends the walk, and the packet is not ours. */
INLINE bool read_ip6(struct __sk_buff *skb, __u32 at, struct packet6 *p)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return false;
	p->ip = at;
	p->l4 = at + sizeof(ip);
	p->length = sizeof(ip) + bpf_ntohs(ip.payload_len);
	p->protocol = ip.nexthdr;
	__builtin_memcpy(&p->tuple.src, &ip.saddr, 16);
	__builtin_memcpy(&p->tuple.dst, &ip.daddr, 16);
	p->later_fragment = p->first_fragment = false;
	p->fragment = 0;
	if (ip.nexthdr == PROTOCOL_FRAGMENT6) {
		struct fragment6 {
			__u8 nexthdr, reserved;
			__be16 offset;
			__be32 id;
		} fragment;

		if (bpf_skb_load_bytes(skb, p->l4, &fragment, sizeof(fragment)))
			return false;
		p->protocol = fragment.nexthdr;
		p->fragment = fragment.id;
		p->later_fragment = fragment.offset & bpf_htons(0xfff8);
		p->first_fragment = !p->later_fragment;
		p->l4 += sizeof(fragment);
	}
	return true;
}
#endif

/* Read addresses, ports and flags; false for what this path does not carry. */
INLINE bool NAME(read_packet)(struct __sk_buff *skb, __u32 at, __u8 hook, struct NAME(packet) *p)
{
	struct NAME(fragment_key) datagram;
	struct port_pair ports;

	p->protocol = 0;
	if (!NAME(read_ip)(skb, at, p))
		return false;
	p->tcp_flags = 0;
	p->icmp_type = 0;
	p->tuple.sport = p->tuple.dport = 0;
	if (p->protocol == PROTOCOL_ICMP_OF_FAMILY)
		return !p->later_fragment && !bpf_skb_load_bytes(skb, p->l4, &p->icmp_type, 1);
	if (p->protocol != PROTOCOL_TCP && p->protocol != PROTOCOL_UDP && p->protocol != PROTOCOL_SCTP)
		return false;

	__builtin_memset(&datagram, 0, sizeof(datagram));
	datagram.src = p->tuple.src;
	datagram.dst = p->tuple.dst;
	datagram.id = p->fragment;
	datagram.protocol = p->protocol;
	datagram.hook = hook;
	if (p->later_fragment) {
		const struct port_pair *known = bpf_map_lookup_elem(&NAME(fragments), &datagram);

		if (!known)
			return false;
		p->tuple.sport = known->sport;
		p->tuple.dport = known->dport;
		return true;
	}
	if (bpf_skb_load_bytes(skb, p->l4, &ports, sizeof(ports)))
		return false;
	p->tuple.sport = ports.sport;
	p->tuple.dport = ports.dport;
	if (p->first_fragment)
		bpf_map_update_elem(&NAME(fragments), &datagram, &ports, BPF_ANY);
	if (p->protocol == PROTOCOL_TCP)
		return !bpf_skb_load_bytes(skb, p->l4 + TCP_FLAGS_OFFSET, &p->tcp_flags, 1);
	if (p->protocol == PROTOCOL_SCTP) {
		__u8 chunk;

		/* Of SCTP only the first packet of an association matters, and only whether its port is defined. */
		return !bpf_skb_load_bytes(skb, p->l4 + SCTP_CHUNK_OFFSET, &chunk, 1) && chunk == SCTP_INIT;
	}
	return true;
}

struct NAME(plain) {
	struct NAME(ip_header) ip;
	struct port_pair ports;
	__u8 more[TCP_FLAGS_OFFSET - sizeof(struct port_pair)];
	__u8 tcp_flags;
};

/*
 * Read what most packets are, a whole TCP or UDP packet without IP options, from where it lies: no helper is called. False
 * for any other, and for one whose headers lie in pieces: read_packet() reads those.
 */
INLINE bool NAME(read_plain)(struct __sk_buff *skb, struct NAME(packet) *p)
{
	const struct NAME(plain) *plain = (const void *)(long)skb->data + link_header;

	if ((const void *)(&plain->tcp_flags + 1) > (const void *)(long)skb->data_end)
		return false;
#if FAMILY == 4
	if (plain->ip.h.ihl != 5 || (plain->ip.h.frag_off & bpf_htons(0x3fff)))
		return false;
	p->protocol = plain->ip.h.protocol;
	p->length = bpf_ntohs(plain->ip.h.tot_len);
	p->tuple.src.w[0] = plain->ip.h.saddr;
	p->tuple.dst.w[0] = plain->ip.h.daddr;
#else
	p->protocol = plain->ip.h.nexthdr;
	p->length = sizeof(plain->ip.h) + bpf_ntohs(plain->ip.h.payload_len);
	__builtin_memcpy(&p->tuple.src, &plain->ip.h.saddr, 16);
	__builtin_memcpy(&p->tuple.dst, &plain->ip.h.daddr, 16);
#endif
	if (p->protocol != PROTOCOL_TCP && p->protocol != PROTOCOL_UDP)
		return false;
	p->tcp_flags = p->protocol == PROTOCOL_TCP ? plain->tcp_flags : 0;
	p->tuple.sport = plain->ports.sport;
	p->tuple.dport = plain->ports.dport;
	p->ip = link_header;
	p->l4 = link_header + sizeof(plain->ip);
	p->icmp_type = 0;
	p->later_fragment = p->first_fragment = false;
	p->fragment = 0;
	return true;
}

#if FAMILY == 6
/* Read the ports behind an option header that is not walked otherwise; false for other protocols than TCP and UDP. */
INLINE bool read_behind6(struct __sk_buff *skb, __u32 at, struct packet6 *p)
{
	struct port_pair ports;
	__u8 nexthdr;

	if (bpf_skb_load_bytes(skb, p->l4, &nexthdr, sizeof(nexthdr)) ||
	    (nexthdr != PROTOCOL_TCP && nexthdr != PROTOCOL_UDP) || bpf_skb_load_bytes(skb, at, &ports, sizeof(ports)))
		return false;
	p->protocol = nexthdr;
	p->tcp_flags = p->icmp_type = 0;
	p->tuple.sport = ports.sport;
	p->tuple.dport = ports.dport;
	if (nexthdr == PROTOCOL_TCP && bpf_skb_load_bytes(skb, at + TCP_FLAGS_OFFSET, &p->tcp_flags, 1))
		return false;
	return true;
}
#endif

/* Replace an address of the header at `ip`; `l4_csum` (0: none) is a checksum with a pseudo header. */
INLINE void NAME(set_addr)(struct __sk_buff *skb, __u32 ip, bool destination, const struct NAME(addr) *old,
			   const struct NAME(addr) *new, __u32 l4_csum, __u64 flags)
{
#if FAMILY == 4
	if (l4_csum)
		bpf_l4_csum_replace(skb, l4_csum, old->w[0], new->w[0], flags | 4);
	bpf_l3_csum_replace(skb, ip + offsetof(struct iphdr, check), old->w[0], new->w[0], 4);
	bpf_skb_store_bytes(skb, ip + (destination ? offsetof(struct iphdr, daddr) : offsetof(struct iphdr, saddr)),
			    new, 4, 0);
#else
	if (l4_csum)
		bpf_l4_csum_replace(skb, l4_csum, 0,
				    bpf_csum_diff((__be32 *)old->w, 16, (__be32 *)new->w, 16, 0), flags);
	bpf_skb_store_bytes(skb, ip + (destination ? 24 : 8), new, 16, 0);
#endif
}

INLINE void NAME(set_port)(struct __sk_buff *skb, __u32 at, __be16 old, __be16 new, __u32 csum, __u64 flags)
{
	if (csum)
		bpf_l4_csum_replace(skb, csum, old, new, flags | 2);
	bpf_skb_store_bytes(skb, at, &new, 2, 0);
}

/* Make the packet carry `to` in place of its tuple. */
INLINE void NAME(rewrite)(struct __sk_buff *skb, const struct NAME(packet) *p, const struct NAME(tuple) *to)
{
	__u64 udp = p->protocol == PROTOCOL_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 csum = p->later_fragment ? 0 : p->l4 + (udp ? UDP_CSUM_OFFSET : TCP_CSUM_OFFSET);

	if (!NAME(same_addr)(&p->tuple.src, &to->src))
		NAME(set_addr)(skb, p->ip, false, &p->tuple.src, &to->src, csum, BPF_F_PSEUDO_HDR | udp);
	if (!NAME(same_addr)(&p->tuple.dst, &to->dst))
		NAME(set_addr)(skb, p->ip, true, &p->tuple.dst, &to->dst, csum, BPF_F_PSEUDO_HDR | udp);
	if (p->later_fragment)
		return;
	if (p->tuple.sport != to->sport)
		NAME(set_port)(skb, p->l4, p->tuple.sport, to->sport, csum, udp);
	if (p->tuple.dport != to->dport)
		NAME(set_port)(skb, p->l4 + 2, p->tuple.dport, to->dport, csum, udp);
}
