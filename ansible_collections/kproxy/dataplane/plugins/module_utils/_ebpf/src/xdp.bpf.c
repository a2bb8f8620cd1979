/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * The fast way for packets that come in by one device of the node and leave by one: what the two tc hooks would do with
 * them, from the same maps, without the stack in between. A packet that this does not carry to its end is passed on
 * untouched, and tc serves it from the entries that are there by then.
 */
#include "flow.h"

/* Whether this program runs in the driver. From there, another device can only be reached if its driver runs us, too. */
const volatile __u32 native SEC(".rodata") = 0;

enum mode {
	MODE_GENERIC = 1,
	MODE_NATIVE = 2,
};

/* Devices that have this program, by index, with enum mode: the only ones packets leave by. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} xdp_links SEC(".maps");

/* Packets of Services by what became of them. Names are in _ebpf/layout.py. */
enum carried {
	CARRIED_HERE = 0,
	CARRIED_BY_TC,
	CARRIED_WAYS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CARRIED_WAYS);
	__type(key, __u32);
	__type(value, __u64);
} xdp_packets SEC(".maps");

INLINE int leave_by(int action, __u32 way)
{
	__u64 *counter = bpf_map_lookup_elem(&xdp_packets, &way);

	if (counter)
		*counter += 1;
	return action;
}

#define FAMILY 4
#define WORDS 1
#include "maps_family.h"
#include "select_family.h"
#include "tuple_family.h"
#include "filter_family.h"
#include "flow_family.h"
#include "open_family.h"
#include "dsr_family.h"
#include "xdp_family.h"
#undef FAMILY
#undef WORDS
#define FAMILY 6
#define WORDS 4
#include "maps_family.h"
#include "select_family.h"
#include "tuple_family.h"
#include "filter_family.h"
#include "flow_family.h"
#include "open_family.h"
#include "dsr_family.h"
#include "xdp_family.h"

SEC("xdp")
int kp_xdp(struct xdp_md *ctx)
{
	const struct ethhdr *link = (const void *)(long)ctx->data;

	if ((const void *)(link + 1) > (const void *)(long)ctx->data_end)
		return XDP_PASS;
	switch (link->h_proto) {
	case bpf_htons(ETHERTYPE_IPV4):
		return carry4(ctx);
	case bpf_htons(ETHERTYPE_IPV6):
		return carry6(ctx);
	default:
		return XDP_PASS;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
