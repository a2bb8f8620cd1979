/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Maps of one family. Included with FAMILY 4 (WORDS 1) and 6 (WORDS 4).
 * Default sizes are floors: the loader raises max_entries to the capacity computed from the objects. Hash maps are not
 * preallocated, so an empty map costs its buckets only.
 */

struct NAME(addr) {
	__u32 w[WORDS];			/* network byte order */
};

/* A NodePort has address 0 and answers where node_addrs holds the dialled address. */
struct NAME(frontend_key) {
	struct NAME(addr) addr;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct NAME(endpoint) {
	struct NAME(addr) addr;
	__be16 port;
	__u8 flags;
	__u8 pad;
};

/*
 * `only` is the endpoint of a Cluster set that has one alone, as many Services do: to look for it in slots4/6 would take as long as
 * to find the frontend, most of it waiting for memory. Port 0: it has more, or none.
 */
struct NAME(frontend) {
	struct frontend_value value;
	struct NAME(endpoint) only;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct NAME(frontend_key));
	__type(value, struct NAME(frontend));
} NAME(frontends) SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct slot_key);
	__type(value, struct NAME(endpoint));
} NAME(slots) SEC(".maps");

/*
 * Maglev tables by set number, one value each, so that a look-up is two loads and a table is replaced as a whole.
 * Preallocated: values of this size come from vmalloc in one piece then, not from the page allocator one by one.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} NAME(tables) SEC(".maps");

/*
 * Endpoints of services with affinity: a pin counts only while its endpoint is still a member of the set. The value is
 * the endpoint's flags, which may change while clients are pinned to it.
 */
struct NAME(member_key) {
	__u32 set;
	struct NAME(endpoint) endpoint;	/* flags 0 */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct NAME(member_key));
	__type(value, __u32);
} NAME(members) SEC(".maps");

/* Local addresses that accept NodePorts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct NAME(addr));
	__type(value, __u32);
} NAME(node_addrs) SEC(".maps");

/* Active ClusterIPs: a port that no frontend has is refused. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct NAME(addr));
	__type(value, __u32);
} NAME(cluster_ips) SEC(".maps");

/* ClientIP affinity. The client is its address before any translation; one pin serves all frontends of a service port. */
struct NAME(pin_key) {
	struct NAME(addr) client;
	__u32 service;
};

struct NAME(pin) {
	__u64 seen;			/* CLOCK_MONOTONIC, ns */
	struct NAME(endpoint) endpoint;
#if FAMILY == 6
	__u32 pad;
#endif
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct NAME(pin_key));
	__type(value, struct NAME(pin));
} NAME(affinity) SEC(".maps");

/* Who may dial a frontend with FRONTEND_RANGES. The service number is the head of the prefix, always matched whole. */
struct NAME(range_key) {
	__u32 prefix;
	__u32 service;
	struct NAME(addr) addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct NAME(range_key));
	__type(value, __u32);
} NAME(ranges) SEC(".maps");
