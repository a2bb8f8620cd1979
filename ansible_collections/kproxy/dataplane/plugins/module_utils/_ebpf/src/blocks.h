/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Which blocks of addresses (256 of IPv4, 65536 of IPv6) may hold a frontend or a cluster IP, by one byte each. Pods and
 * machines live in few blocks, and Services in others, so a new connection to an endpoint itself is told by a byte that
 * stays in the processor's cache, where frontends and cluster IPs are as many as there are Services. Others share a byte.
 *
 * User space sets it before it writes either, and never clears it. The hash is the one of _ebpf/served_blocks.py.
 */
#pragma once

#include "filter.h"

#define BLOCK_BITS 14

struct served_blocks {
	__u64 in_use;			/* 0: not all were set, ask the maps */
	__u8 slots[1 << BLOCK_BITS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct served_blocks);
} served_blocks SEC(".maps");

INLINE bool may_serve(__u64 block)
{
	const struct served_blocks *blocks;
	__u32 zero = 0;

	blocks = bpf_map_lookup_elem(&served_blocks, &zero);
	return !blocks || !blocks->in_use || blocks->slots[block * FILTER_MIX >> (64 - BLOCK_BITS)];
}
