/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* Frontend lookup and the choice of an endpoint, for one family. Included with FAMILY 4 and 6. */

INLINE bool NAME(same_addr)(const struct NAME(addr) *a, const struct NAME(addr) *b)
{
#if FAMILY == 6
	return a->w[0] == b->w[0] && a->w[1] == b->w[1] && a->w[2] == b->w[2] && a->w[3] == b->w[3];
#else
	return a->w[0] == b->w[0];
#endif
}

INLINE bool NAME(unset_addr)(const struct NAME(addr) *a)
{
#if FAMILY == 6
	return !(a->w[0] | a->w[1] | a->w[2] | a->w[3]);
#else
	return !a->w[0];
#endif
}

INLINE bool NAME(loopback_addr)(const struct NAME(addr) *a)
{
#if FAMILY == 6
	return !(a->w[0] | a->w[1] | a->w[2]) && a->w[3] == bpf_htonl(1);
#else
	return (a->w[0] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
#endif
}

/* The row of the dialled address itself decides about sources, whatever row answers in the end. */
INLINE const struct frontend_value *NAME(exact_frontend)(const struct NAME(addr) *addr, __be16 port, __u8 protocol)
{
	struct NAME(frontend_key) key = { .addr = *addr, .port = port, .protocol = protocol, .pad = 0 };

	return bpf_map_lookup_elem(&NAME(frontends), &key);
}

/*
 * What answers, given the row of the dialled address: it wins over a NodePort of the same number, unless it leads nobody to
 * an endpoint. Of two that lead nowhere the NodePort's refuses (_frontends/simulate.py asks in the same order).
 */
INLINE const struct frontend_value *NAME(find_frontend)(const struct frontend_value *exact,
							const struct NAME(addr) *addr, __be16 port, __u8 protocol,
							enum client kind)
{
	struct NAME(frontend_key) key = { .port = port, .protocol = protocol, .pad = 0 };
	const struct frontend_value *node_port;

	if (exact && (exact->answer[kind] & VERDICT_MASK) == VERDICT_DNAT)
		return exact;
	if (!bpf_map_lookup_elem(&NAME(node_addrs), addr))
		return exact;
	node_port = bpf_map_lookup_elem(&NAME(frontends), &key);
	if (!node_port)
		return exact;
	/* A Local policy without endpoints here still leads the node somewhere, so the address is taken for everybody. */
	if (exact && (exact->answer[CLIENT_NODE] & VERDICT_MASK) == VERDICT_DNAT &&
	    (node_port->answer[kind] & VERDICT_MASK) == VERDICT_DNAT)
		return exact;
	return node_port;
}

/*
 * What chooses in a Maglev table: MurmurHash3 (x86, 32 bits) with seed HASH_SEED over the bytes of the packet as the
 * client sent it: source and destination address, source and destination port, protocol as four bytes, least
 * significant first. _ebpf/maglev.py computes the same. Every node has the same seed, so every node chooses alike.
 */
INLINE __u32 NAME(flow_hash)(const struct NAME(addr) *src, const struct NAME(addr) *dst, __be16 sport, __be16 dport,
			     __u8 protocol)
{
	__u32 hash = HASH_SEED;

	for (int i = 0; i < WORDS; i++)
		hash = hash_word(hash, src->w[i]);
	for (int i = 0; i < WORDS; i++)
		hash = hash_word(hash, dst->w[i]);
	hash = hash_word(hash, (__u32)dport << 16 | sport);
	return hash_end(hash_word(hash, protocol), 8 * WORDS + 8);
}

/* With ClientIP affinity: of the client's address alone. */
INLINE __u32 NAME(client_hash)(const struct NAME(addr) *client)
{
	__u32 hash = HASH_SEED;

	for (int i = 0; i < WORDS; i++)
		hash = hash_word(hash, client->w[i]);
	return hash_end(hash, 4 * WORDS);
}

/* The endpoint that the set's table has for a hash; NULL where there is no table, or no such slot any more. */
INLINE const struct NAME(endpoint) *NAME(table_endpoint)(__u32 set, __u32 hash)
{
	struct slot_key slot = { .set = set, .slot = 0 };
	const struct table *table;
	__u32 index;

	if (!table_size)
		return NULL;
	table = bpf_map_lookup_elem(&NAME(tables), &set);
	if (!table)
		return NULL;
	index = hash % table_size;
	/* The verifier takes a remainder for any number, and the compiler a check of it for needless. */
	asm volatile("" : "+r"(index));
	if (index >= table_size)
		return NULL;
	slot.slot = table->slot[index];
	return bpf_map_lookup_elem(&NAME(slots), &slot);
}

/*
 * Choose an endpoint of `frontend` for `client`: a live pin first, then the set's Maglev table if the frontend has one,
 * else an even random choice; renew the pin. `flow` is the flow_hash of the packet, NULL at a socket, which has no source
 * port yet: there only ClientIP affinity goes by the table.
 * Returns false if the set lost the slot under our feet (the caller refuses; the client's next try finds the new set).
 */
INLINE bool NAME(choose_endpoint)(const struct frontend_value *frontend, bool local_only,
				  const struct NAME(addr) *client, const __u32 *flow, struct NAME(endpoint) *chosen)
{
	struct slot_key slot = { .set = set_number(frontend->service, local_only), .slot = 0 };
	__u32 count = local_only ? frontend->count_local : frontend->count_cluster;
	struct NAME(pin_key) pin_key = { .client = *client, .service = frontend->service };
	struct NAME(pin) fresh;
	const struct NAME(endpoint) *found = NULL;
	const struct NAME(frontend) *in_map = (const void *)frontend;

	if (frontend->flags & FRONTEND_AFFINITY) {
		const struct NAME(pin) *pin = bpf_map_lookup_elem(&NAME(affinity), &pin_key);

		__builtin_memset(&fresh, 0, sizeof(fresh));
		fresh.seen = bpf_ktime_get_ns();
		if (pin && fresh.seen - pin->seen <= frontend->affinity_seconds * 1000000000ULL) {
			struct NAME(member_key) member = { .set = slot.set, .endpoint = pin->endpoint };

			const __u32 *flags = bpf_map_lookup_elem(&NAME(members), &member);

			if (flags) {
				*chosen = pin->endpoint;
				chosen->flags = *flags;
				fresh.endpoint = pin->endpoint;
				bpf_map_update_elem(&NAME(affinity), &pin_key, &fresh, BPF_ANY);
				return true;
			}
		}
	}
	if (!count)
		return false;
	if (frontend->flags & FRONTEND_MAGLEV) {
		if (frontend->flags & FRONTEND_AFFINITY)
			found = NAME(table_endpoint)(slot.set, NAME(client_hash)(client));
		else if (flow)
			found = NAME(table_endpoint)(slot.set, *flow);
	}
	/* At a socket, where it counts most; in packet programs the verifier would walk a fifth more for it. */
	if (!found && !flow && !local_only && in_map->only.port)
		found = &in_map->only;
	if (!found) {
		slot.slot = bpf_get_prandom_u32() % count;
		found = bpf_map_lookup_elem(&NAME(slots), &slot);
	}
	if (!found)
		return false;
	*chosen = *found;
	if (frontend->flags & FRONTEND_AFFINITY) {
		fresh.endpoint = *found;
		fresh.endpoint.flags = 0;
		bpf_map_update_elem(&NAME(affinity), &pin_key, &fresh, BPF_ANY);
	}
	return true;
}

INLINE bool NAME(in_ranges)(const struct frontend_value *frontend, const struct NAME(addr) *source)
{
	struct NAME(range_key) key = { .prefix = 32 + 32 * WORDS, .service = frontend->service, .addr = *source };

	return bpf_map_lookup_elem(&NAME(ranges), &key);
}
