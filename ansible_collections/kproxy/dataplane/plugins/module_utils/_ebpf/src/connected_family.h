/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * What connected TCP sockets have dialled, for one family. Included with FAMILY 4 and 6.
 * A socket has one place, which its cookie names: to write it takes no lock, no memory and no search, which a hash map all
 * takes. Who finds its place taken goes to sockets4/6 instead, so the number of places decides about speed alone.
 */

/* A power of two. */
#define NUMBER_OF_PLACES 16384

/*
 * `dialled` is told to whoever asks for the peer of the socket `cookie` while that peer is `endpoint`. Cookies are never
 * given twice, so what a closed socket has left speaks to nobody.
 */
struct NAME(connected) {
	__u64 cookie;
	__u32 taken;			/* 1: by `cookie`; more only while others try */
	__u32 elsewhere;		/* sockets that found it taken and are in sockets4/6 */
	struct NAME(addr) dialled;
	struct NAME(addr) endpoint;
	__be16 dialled_port;
	__be16 endpoint_port;		/* 0: dialled no frontend last */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NUMBER_OF_PLACES);
	__type(key, __u32);
	__type(value, struct NAME(connected));
} NAME(connected) SEC(".maps");

/*
 * Sockets made one after the other lie side by side. A processor takes 4096 cookies at a time: the golden section keeps
 * those of different processors apart.
 */
INLINE struct NAME(connected) *NAME(place_of)(__u64 cookie)
{
	__u32 index = (cookie + (cookie >> 12) * 10125) & (NUMBER_OF_PLACES - 1);

	return bpf_map_lookup_elem(&NAME(connected), &index);
}

/* Take the place for a socket; false if another one has it, even if both only try. */
INLINE bool NAME(take_place)(struct NAME(connected) *place, __u64 cookie)
{
	if (place->cookie == cookie)
		return true;
	__sync_fetch_and_add(&place->taken, 1);
	if (*(volatile __u32 *)&place->taken == 1) {
		place->cookie = cookie;
		return true;
	}
	__sync_fetch_and_add(&place->taken, -1);
	return false;
}
