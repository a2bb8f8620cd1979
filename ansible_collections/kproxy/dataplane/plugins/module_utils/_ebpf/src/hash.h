/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* MurmurHash3_x86_32 (Austin Appleby, public domain), for data in whole words. */
#pragma once

#include "bpf.h"

#define HASH_SEED 0x6b70726fU

INLINE __u32 hash_word(__u32 hash, __u32 word)
{
	word *= 0xcc9e2d51U;
	word = word << 15 | word >> 17;
	hash ^= word * 0x1b873593U;
	hash = hash << 13 | hash >> 19;
	return hash * 5 + 0xe6546b64U;
}

INLINE __u32 hash_end(__u32 hash, __u32 bytes)
{
	hash ^= bytes;
	hash ^= hash >> 16;
	hash *= 0x85ebca6bU;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35U;
	return hash ^ hash >> 16;
}
