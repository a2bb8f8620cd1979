/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * What every program needs from the kernel: the uapi types, the helpers we call, and the macros that mark sections
 * and maps. Helper numbers are uapi (include/uapi/linux/bpf.h); declaring the dozen we use keeps the build free of
 * libbpf's headers.
 */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define NOINLINE_COPY(dst, src) __builtin_memcpy((dst), (src), sizeof(*(dst)))

/* Read by the loader from the .maps section, as BTF: an array's length is a number, a pointer's target is a type. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)
#define bpf_ntohl(x) __builtin_bswap32(x)

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len,
				   __u64 flags) = (void *)9;
static long (*bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
				   __u64 size) = (void *)10;
static long (*bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
				   __u64 flags) = (void *)11;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static __s64 (*bpf_csum_diff)(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __wsum seed) = (void *)28;
static long (*bpf_redirect)(__u32 link, __u64 flags) = (void *)23;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, __u32 length, __u64 flags) = (void *)38;
static __u64 (*bpf_get_socket_cookie)(void *ctx) = (void *)46;
static long (*bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static long (*bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 delta, __u32 mode, __u64 flags) = (void *)50;
static long (*bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *route, int size, __u32 flags) = (void *)69;
static __u64 (*bpf_get_netns_cookie)(void *ctx) = (void *)122;
static long (*bpf_redirect_neigh)(__u32 link, void *next_hop, int size, __u64 flags) = (void *)152;
static long (*bpf_check_mtu)(void *ctx, __u32 link, __u32 *mtu, __s32 more, __u64 flags) = (void *)163;
static int (*bpf_set_retval)(int retval) = (void *)187;
