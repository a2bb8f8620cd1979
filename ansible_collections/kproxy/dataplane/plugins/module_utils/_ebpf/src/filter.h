/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * What tells, by one byte, that there is no entry of flows4/6 about two ends, for nearly every packet that is not ours. A
 * byte that is set says nothing: entries go, and others share it. Both families have the same bytes.
 *
 * Bytes are cleared by user space alone, which fills another array meanwhile: programs set both and read the one in use. Who
 * enters a flow without setting its byte loses that connection, so everybody does it by put_flow(). The hash is one with
 * _ebpf/flow_filter.py, and part of the layout.
 */
#pragma once

#include "layout.h"

#define FILTER_BITS 17
#define FILTER_SLOTS (1 << FILTER_BITS)
#define FILTER_GROUP_BITS 5		/* so many slots, in bits, have one byte more in common */
#define FILTER_GROUPS (FILTER_SLOTS >> FILTER_GROUP_BITS)
#define FILTER_IN_USE 0x02		/* without it, everything is looked up */
#define FILTER_ARRAY 0x01		/* which array is read */

/* Odd numbers, in which bits change at random: of the golden ratio, and two of MurmurHash3. */
#define FILTER_MIX 0x9e3779b97f4a7c15ULL
#define FILTER_MIX6 0xff51afd7ed558ccdULL
#define FILTER_MIX_PORT 0xc4ceb9fe1a85ec53ULL

struct filter_array {
	__u8 groups[FILTER_GROUPS];	/* asked first: few enough to stay in the processor's nearest cache */
	__u8 slots[FILTER_SLOTS];
};

struct flow_filter {
	__u64 state;			/* FILTER_IN_USE, FILTER_ARRAY */
	struct filter_array arrays[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_filter);
} flow_filter SEC(".maps");

INLINE struct flow_filter *the_filter(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&flow_filter, &zero);
}

/* The same for both directions. Folded before they are added, or all pairs of the same sum would share a slot. */
INLINE __u32 filter_slot(__u64 source, __u64 destination)
{
	__u64 both = (source ^ source >> 32) + (destination ^ destination >> 32);

	return both * FILTER_MIX >> (64 - FILTER_BITS);
}
